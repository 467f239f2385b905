"""A worker process: its exit codes, signals and logs, and what it does when the disk is full."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

from mtl.errors import InputError, RunError
from mtl.files import full_disk

T = TypeVar("T")
INTERRUPTED, DISK_FULL, REFUSED = 130, 3, 2
"""Exit codes of a worker: interrupted, disk full, bad input (a restart would not help; the last line of the
log is the message)."""
TRIES = 3
"""Maximum number of tries of a job whose process dies; a job that fails with an error is not tried again."""
LOOK = 0.5
"""Seconds between two looks at workers, or at a worker's parent."""
_STOPPING = (
    signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGHUP,
)  # fmt: skip


def stopping() -> list[signal.Signals]:
    """Signals that ask this process to save its state and end.

    Clusters send SIGUSR1, SIGUSR2 and SIGXCPU before SIGKILL. A terminal that is closed sends SIGHUP, which
    does not count if `nohup` made the process ignore it.
    """
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in _STOPPING if not (ignored and number == signal.SIGHUP)]


class FullDisk(Exception):
    """The disk is full, so that other jobs would fail, too."""


class Failed(Exception):
    """A job has failed; the message is one line."""

    @property
    def for_lack_of_memory(self) -> bool:
        """Whether a GPU was out of memory: another process may have used it, so that a retry may succeed."""
        import torch

        return isinstance(self.__cause__, torch.cuda.OutOfMemoryError)


def run_worker(parent: int, threads: int, work: Callable[[], None]) -> int:
    """Do the work with this number of threads; interrupt it when the process `parent` is gone.

    Returns the exit code: 0, `INTERRUPTED`, `DISK_FULL` or `REFUSED`. Other errors are raised.
    """
    import torch

    torch.set_num_threads(threads)
    interruptible()
    _die_with(parent)
    try:
        work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except FullDisk:
        return DISK_FULL
    except InputError as error:
        print(f"mtl: {error}", file=sys.stderr)
        return REFUSED
    except OSError as error:
        if full_disk(error, Path()) is not None:
            return DISK_FULL
        raise
    return 0


def last_line(log: Path) -> str:
    """Why a worker refused its work: the last line of its log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    message = text.strip().rpartition("\n")[2] or f"a worker refused its work; see {log}"
    return message.removeprefix("mtl: ")


def interruptible() -> None:
    """Make the signals of `stopping` interrupt this process, even if it was started with them ignored.

    Shell scripts and clusters start background processes that way.
    """

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for number in stopping():
            signal.signal(number, interrupt)


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Make the signals of `stopping` interrupt this process during the block."""
    before = {number: signal.getsignal(number) for number in _STOPPING}
    interruptible()
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _die_with(parent: int) -> None:
    """Interrupt this process, as Ctrl-C does, when its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def redirect_output(log: Path) -> Iterator[None]:
    """Append everything that this process and its libraries print during the block to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    with log.open("a", encoding="utf-8", buffering=1) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        try:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                yield
        finally:
            file.flush()
            for descriptor, old in zip((1, 2), before, strict=True):
                os.dup2(old, descriptor)
                os.close(old)


def logged(log: Path, work: Callable[[], T]) -> T:
    """The result of `work`, whose output is appended to a log.

    Raises `FullDisk` for an error caused by a full disk, and `Failed` for any other error, which is logged.
    """
    with redirect_output(log):
        try:
            return work()
        except (InputError, RunError) as error:
            print(f"mtl: {error}", file=sys.stderr)
            raise Failed(" ".join(str(error).split())) from error
        except Exception as error:  # any error ends only this job
            if full_disk(error, log.parent) is not None:
                raise FullDisk from error
            traceback.print_exc()
            raise Failed(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def no_room(folder: Path) -> str:
    """The message for a full disk."""
    return (
        f"the disk is full ({folder}): free some space and run the command again; finished results are kept, "
        "and the rest resumes from its last checkpoints"
    )
