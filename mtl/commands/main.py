"""The program `mtl`: it finds the command, parses its arguments, and prints an error as one line."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NoReturn

from mtl.commands.command_table import COMMANDS, arguments_for
from mtl.commands.help import help_of, overview, speaking, without_verbosity
from mtl.errors import InputError, RunError, did_you_mean
from mtl.files import may_be_written
from mtl.tasks.in_words import first_line
from mtl.workers.launch import alone
from mtl.workers.queue import interrupted_by_signals

_FILE_ERRORS = {
    errno.EACCES: "permission denied: use another path, or change its permissions",
    errno.EPERM: "not permitted: use another path, or change its permissions",
    errno.EROFS: "the file system is read-only: use another path",
    errno.ENOENT: "no such file or folder",
    errno.EEXIST: "it exists already: use another path",
    errno.EILSEQ: "the name has characters that do not print: use another one",
    errno.ENOTSUP: "it is not a regular file, and would be replaced: use another path",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.ENAMETOOLONG: "the name is too long: use a shorter one",
    errno.ELOOP: "too many symbolic links, perhaps a circle",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n), or use fewer --jobs",
    errno.ENFILE: "too many open files on this machine: end other programs",
    errno.EFBIG: "larger than a file may be here: raise the limit (ulimit -f), or use another file system",
    errno.EIO: "the disk does not answer: use another path, or try again",
    errno.ESTALE: "the file server has lost it: try again",
    errno.ENOSPC: "the disk is full: free some space and run the command again",
    errno.EDQUOT: "the quota is used up: free some space and run the command again",
}
"""Errors of the operating system that the user can fix, and how."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns 0 (done), 1 (failed), 2 (bad arguments or input) or 130 (interrupted)."""
    if arguments is not None:
        return _code_of(list(arguments), program=False)
    _use_utf8()
    drop_thread_counts()
    give_libraries_a_home()
    give_matplotlib_a_folder()
    code = _code_of(sys.argv[1:], program=True)
    gc.freeze()  # otherwise Python searches all objects for cycles at exit: 0.3 s after a large report
    return code


def _code_of(words: list[str], program: bool) -> int:
    # Otherwise tokenizers warns if the process forks after its first use.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["MPLBACKEND"] = "agg"  # figures are files, whatever display the user has
    name = ""
    if "_MTL_COMPLETE" in os.environ:
        from mtl.commands.completion import complete

        return complete(os.environ["_MTL_COMPLETE"])
    try:
        if program:
            _have_docstrings()
        _require_current_folder()
        words, verbosity = without_verbosity(words)
        name, rest = _command(words)
        group = _help_group(rest)
        if group is not None:
            print(help_of(name, group or None))
            raise SystemExit(0)
        among = nullcontext() if COMMANDS[name].several_processes else alone()
        with interrupted_by_signals(), naming_variables(), among, speaking(verbosity, COMMANDS[name], rest):
            return _run(name, rest)
    except InputError as error:
        message, code = str(error), 2
    except RunError as error:
        message, code = str(error), 1
    except KeyboardInterrupt as interrupt:
        message, code = f"interrupted; {str(interrupt) or _after_interruption(name)}", 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.errno not in _FILE_ERRORS:
            raise
        where = f"{error.filename}: " if error.filename else ""
        message, code = f"{where}{_FILE_ERRORS[error.errno]}", 2
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        message, code = f"out of memory ({first_line(error)}): lower batch.tokens, or the sizes of layers", 1
    print(f"mtl: {_one_line(message)}", file=sys.stderr)
    return code


def _require_current_folder() -> None:
    """Raise `InputError` if the current folder was removed."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise InputError("the current folder was removed: go to another one") from None


def _after_interruption(name: str) -> str:
    """What an interrupted command has left, and what to do now."""
    if name and COMMANDS[name].resumes:
        return "run the command again to resume"
    writes = name and arguments_for(name).written
    return f"{'all files are whole or as before: ' if writes else ''}run the command again"


def _one_line(message: str) -> str:
    """The message with escapes for characters that would break the line or act on the terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in message)


def _use_utf8() -> None:
    """Use UTF-8 whatever the locale says, for files, their names, arguments and what is printed.

    Python decides about names and arguments when it starts, so it is started once more if it decided
    otherwise.
    """
    if sys.getfilesystemencoding().lower() != "utf-8" and sys.flags.utf8_mode == 0:
        _start_again(PYTHONUTF8="1")
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(encoding="utf-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names of files may be any bytes


def _have_docstrings() -> None:
    """Keep docstrings, whatever PYTHONOPTIMIZE says: the help and transformers need them.

    Raises `InputError` if Python was started with -OO.
    """
    if sys.flags.optimize > 1:
        if os.environ.get("PYTHONOPTIMIZE", "1") != "1":
            _start_again(PYTHONOPTIMIZE="1")
        raise InputError(
            "Python leaves out docstrings (-OO), and mtl and transformers need them: use -O, or no option"
        )


def _start_again(**variables: str) -> NoReturn:
    """Start the program once more, with other values of variables that Python reads when it starts."""
    words = [os.fsencode(word) for word in [sys.executable, *sys.orig_argv[1:]]]
    os.execve(sys.executable, words, {**os.environ, **variables})


def _run(name: str, words: Sequence[str]) -> int:
    arguments = arguments_for(name)
    values = arguments.read(f"mtl {name}", words)
    for argument, place in arguments.written.items():
        if values[argument] is not None:
            place.check(values[argument])
    return int(arguments.call(**values) or 0)


def _help_group(words: Sequence[str]) -> str | None:
    """The group of keys in `--help=GROUP`; empty for `--help`, `None` if no help is asked for."""
    for word in words:
        if word in ("-h", "--help"):
            return ""
        if word.startswith("--help="):
            return word.removeprefix("--help=")
    return None


def _command(words: Sequence[str]) -> tuple[str, list[str]]:
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        raise SystemExit(0)
    if words[0] == "help":
        return _command([*words[1:], "--help"])
    if words[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"mtl {version('mtl-heads')}")
        raise SystemExit(0)
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS and len(words) >= length:
            return name, list(words[length:])
    group = [name for name in COMMANDS if name.startswith(f"{words[0]} ")]
    if group and words[1:2] in (["-h"], ["--help"]):
        print(overview(group))
        raise SystemExit(0)
    if group and len(words) == 1:
        commands = ", ".join(name.partition(" ")[2] for name in group)
        raise InputError(f"mtl {words[0]} needs one of {commands} after it; see mtl {words[0]} --help")
    given = " ".join(words[:2]) if group else words[0]
    raise InputError(f"no command '{given}'{did_you_mean(given, COMMANDS, '; see mtl --help')}")


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an error reports that memory is used up; torch is not imported for its class.

    Without an accelerator, torch raises a plain `RuntimeError`, which only its text tells from others. A test
    compares this text with the real error.
    """
    torch = sys.modules.get("torch")
    classes = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, classes) or "DefaultCPUAllocator: can't allocate memory" in str(error)


_SHOWN = 3
"""Maximum number of variables that a message names."""


def drop_thread_counts() -> None:
    """Remove invalid numbers of threads from the environment, over which libraries end the process."""
    for name in ("OMP", "MKL", "OPENBLAS", "NUMBA", "RAYON", "POLARS"):
        variable = f"{name}_MAX_THREADS" if name == "POLARS" else f"{name}_NUM_THREADS"
        if not os.environ.get(variable, "1").isdecimal() or os.environ.get(variable) == "0":
            del os.environ[variable]


def give_libraries_a_home() -> None:
    """Set `HOME` if no home is known, over which some libraries cannot be imported; it need not exist."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/nonexistent"


def give_matplotlib_a_folder() -> None:
    """Give matplotlib a temporary folder, also in child processes, if the user has no writable one.

    Otherwise each process makes a folder of its own, and prints a long remark about it.
    """
    if "MPLCONFIGDIR" in os.environ:
        return
    place = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "matplotlib"
    if may_be_written(place):
        return
    with suppress(OSError):
        os.environ["MPLCONFIGDIR"] = folder = tempfile.mkdtemp(prefix="mtl-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


@contextmanager
def naming_variables() -> Iterator[None]:
    """Raise an `InputError` that names environment variables if an import in the block fails over them."""
    try:
        yield
    except (InputError, RunError, ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        if (message := _fault_of_variables(error)) is None:
            raise
        raise InputError(message) from error


def _fault_of_variables(error: Exception) -> str | None:
    """What to do about a failed import; `None` if no import failed, or no variable can be the reason.

    The variables are those named in the library's lines that failed, otherwise those that begin with the
    library's name.
    """
    frames = traceback.extract_tb(error.__traceback__)
    of_imports = [number for number, frame in enumerate(frames) if frame.name == "<module>"]
    if not of_imports:
        return None
    begin = of_imports[-1]
    parts = Path(frames[begin].filename).parts
    if "site-packages" not in parts:
        return None
    library = parts[parts.index("site-packages") + 1].removesuffix(".py")
    lines = [frame.line or "" for frame in frames[begin:]]
    found = [name for name in os.environ if any(f'"{name}"' in line for line in lines)]
    found = found or sorted(name for name in os.environ if name.startswith(f"{library.upper()}_"))
    if not found:
        return None
    values = ", ".join(f"{name}={os.environ[name]!r}" for name in found[:_SHOWN])
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{library} cannot be imported ({reason}): correct or unset {values}"
