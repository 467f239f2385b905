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
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NoReturn, cast
from unittest.mock import patch

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.mtl.preloaded"])
_FORK = multiprocessing.get_context("fork")
_STREAMS = ("out", "err")


@contextlib.contextmanager
def forked(
    module: str,
    words: Sequence[str],
    output: Path,
    *,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
    workers: int = 0,
) -> Iterator[ForkServerProcess]:
    """`python -m module words`, the leader of a group of its own; nothing of it is left after the block.

    What it prints is in the files `output`.out and `output`.err; see `printed`. The first `workers` of its
    worker processes are forked, too.
    """
    for name in _STREAMS:
        Path(f"{output}.{name}").write_bytes(b"")
    given = (module, list(words), output, dict(environment), folder or Path.cwd(), workers)
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


class Worker:
    """A worker process that is forked before anything is read, so that it starts at once; as a `Popen`."""

    def __init__(self) -> None:
        theirs, self._words = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_work, args=(theirs, self._words))
        self._process.start()
        theirs.close()
        self.pid = cast("int", self._process.pid)  # which only a process that was not started lacks

    def begin(self, words: Sequence[str], environment: dict[str, str], log: Path) -> Worker:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._words.send((words, environment, log))
        return self

    def leave(self) -> None:
        """Let a worker that was not needed end."""
        self._words.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> None:
        self._process.join()

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


@contextlib.contextmanager
def forked_workers(number: int) -> Iterator[list[Worker]]:
    """The first worker processes that a command starts in the block, which are there already."""
    from mtl.workers.pool import start_worker

    workers = [Worker() for _ in range(number)]
    left = list(workers)

    def start(*given: Any) -> Any:
        *words_and_so_on, directory = given
        return left.pop(0).begin(*words_and_so_on) if left and directory is None else start_worker(*given)

    try:
        with patch("mtl.workers.pool.start_worker", start):
            yield workers
    finally:
        for worker in workers:
            worker.leave()


def _work(words: Connection, others: Connection) -> None:
    others.close()
    os.setsid()
    try:
        (module, *given), environment, log = words.recv()
    except EOFError:
        return
    _end(_code_of(module, given, environment, (log, log)))


def _carry_out(
    module: str, words: list[str], output: Path, environment: dict[str, str], folder: Path, workers: int
) -> None:
    os.setsid()
    os.chdir(folder)
    with forked_workers(workers) if workers else contextlib.nullcontext():
        outputs = [Path(f"{output}.{name}") for name in _STREAMS]
        code = _code_of(module, words, {"OMP_NUM_THREADS": "1", **environment}, outputs)
    _end(code)


def _code_of(module: str, words: list[str], environment: dict[str, str], outputs: Sequence[Path]) -> int:
    os.environ.clear()
    os.environ |= environment
    for descriptor, output in enumerate(outputs, 1):
        with output.open("ab") as file:
            os.dup2(file.fileno(), descriptor)
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> NoReturn:
    ctypes.pythonapi.Py_Exit(code)  # multiprocessing would leave out what an interpreter does at its end
    raise AssertionError
