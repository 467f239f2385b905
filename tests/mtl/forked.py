"""Python processes that have imported everything when they start: forked from one that does nothing else.

In all else they are as `python -m MODULE WORD...`: they have arguments, environment, folder, output and group
of their own, and their interpreter ends as any other does.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.mtl.preloaded"])
_STREAMS = ("out", "err")


@contextlib.contextmanager
def forked(
    module: str,
    words: Sequence[str],
    output: Path,
    *,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Iterator[ForkServerProcess]:
    """`python -m module words`, the leader of a group of its own; nothing of it is left after the block.

    What it prints is in the files `output`.out and `output`.err; see `printed`.
    """
    for name in _STREAMS:
        Path(f"{output}.{name}").write_bytes(b"")
    given = (module, list(words), output, dict(environment), folder or Path.cwd())
    process = _CONTEXT.Process(target=_carry_out, args=given)
    process.start()
    assert process.pid is not None
    try:
        yield process
    finally:
        process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def printed(output: Path, *streams: str) -> str:
    """What a process with this `output` has printed so far: to `out`, to `err`, or to both."""
    return "".join(Path(f"{output}.{name}").read_text() for name in streams or _STREAMS)


def ended(process: ForkServerProcess, within: float) -> int:
    """The exit code of a process, as `Popen.wait` gives it."""
    process.join(within)
    assert process.exitcode is not None, f"the process has not ended within {within} seconds"
    return process.exitcode


def _carry_out(
    module: str, words: list[str], output: Path, environment: dict[str, str], folder: Path
) -> None:
    os.setsid()
    os.environ.clear()
    os.environ |= {"OMP_NUM_THREADS": "1", **environment}
    os.chdir(folder)
    for descriptor, name in enumerate(_STREAMS, 1):
        with Path(f"{output}.{name}").open("wb") as file:
            os.dup2(file.fileno(), descriptor)
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except Exception:
        traceback.print_exc()
        code = 1
    ctypes.pythonapi.Py_Exit(code)  # multiprocessing would leave out what an interpreter does at its end
