"""How much a command prints: `--quiet` and `--verbose`, which every command takes.

The level of Python's root logger holds the choice: at ERROR progress bars are off, and at INFO or below
nothing that libraries log is silenced.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path

from mtl.commands.command_table import Command
from mtl.errors import InputError

QUIET, VERBOSE = "--quiet", "--verbose"
HELP = (
    f"Every command takes {QUIET} (no progress, no messages) and {VERBOSE} (logs of libraries, tracebacks)."
)
_ASKING = ("--status", "--dry-run", "--dry_run", "--print_config")
"""Options whose answer is printed even if the command is quiet."""


def without_verbosity(words: Sequence[str]) -> tuple[list[str], str]:
    """The other words, and the option that was among them, if any; raises `InputError` for both options."""
    given = {word for word in words if word in (QUIET, VERBOSE)}
    if len(given) > 1:
        raise InputError(f"{QUIET} and {VERBOSE} exclude each other: leave one out")
    return [word for word in words if word not in given], "".join(given)


@contextmanager
def speaking(verbosity: str, command: Command, words: Sequence[str]) -> Iterator[None]:
    """Run a command as quietly or verbosely as `verbosity` says.

    A quiet command prints only its answer, such as a table of scores with its notes, and nothing if its
    result is a file or folder.
    """
    if verbosity == QUIET:
        answers = command.answers or any(word.split("=")[0] in _ASKING for word in words)
        with (
            _level(logging.ERROR),
            Path(os.devnull).open("w") as nowhere,
            nullcontext() if answers else redirect_stdout(nowhere),
        ):
            yield
    elif verbosity == VERBOSE:
        with _level(logging.INFO), _measured():
            yield
    else:
        yield


@contextmanager
def _level(level: int) -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    logging.basicConfig(stream=sys.stderr, format="%(name)s: %(message)s")
    root.setLevel(level)
    try:
        yield
    finally:
        root.setLevel(before)


@contextmanager
def _measured() -> Iterator[None]:
    """Print the traceback of an error, and at the end the time and peak memory of the command."""
    start = time.perf_counter()
    try:
        yield
    except Exception:
        traceback.print_exc()
        raise
    finally:
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
        print(f"mtl: {time.perf_counter() - start:.1f} s, {peak:,.0f} MB at most", file=sys.stderr)
