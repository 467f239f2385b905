"""A queue of jobs in a folder, shared by any number of processes, and the worker that does them.

The function that takes the next job differs: a study has a plan, a sweep has a sampler.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Literal, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from mtl.errors import InputError, RunError
from mtl.files import full_disk
from mtl.workers.lease import Holder, holder_of

State = Literal["waiting", "running", "finished", "stopped", "failed", "interrupted"]
WAIT = 1.0
"""Seconds between two looks for a free job while others work."""


@dataclass(frozen=True)
class Progress:
    """The progress of a job; written only by the process that holds its lease."""

    state: State = "waiting"
    tries: int = 0
    started: float = 0.0
    ended: float = 0.0
    """Start and end of the last try, in seconds since 1970; 0: not yet."""
    seconds: float = 0.0
    """Seconds of work, over all tries that have ended."""
    worker: str = ""
    error: str = ""
    """Why it failed, in one line."""

    def spent(self) -> float:
        """Seconds of work so far."""
        return self.seconds + (time.time() - self.started if self.state == "running" else 0.0)


J = TypeVar("J")
P = TypeVar("P", bound=Progress)


@dataclass(frozen=True)
class Snapshot(Generic[J, P]):
    """All jobs and their progress, by name, at one moment."""

    jobs: Mapping[str, J]
    progress: Mapping[str, P]

    def state(self, name: str) -> State:
        """A job's state."""
        return self.progress[name].state

    def states(self) -> dict[str, State]:
        """Every job's state."""
        return {name: self.state(name) for name in self.jobs}

    def ended(self) -> int:
        """The number of jobs that have finished, failed or been stopped."""
        return sum(state in ("finished", "stopped", "failed") for state in self.states().values())


@dataclass(frozen=True)
class JobFolder:
    """Where the files of jobs are."""

    path: Path

    @property
    def runs(self) -> Path:
        """Holds the run folders."""
        return self.path / "runs"

    def run(self, name: str) -> Path:
        """The folder of a job's run."""
        return self.runs / name

    def log(self, name: str) -> Path:
        """The output of a job."""
        return self.path / "logs" / f"{name}.log"

    def lease_file(self, name: str) -> Path:
        """The lease of the process that works on a job."""
        return self.path / "leases" / f"{name}.lease"

    def living(self, name: str, progress: P) -> P:
        """A job's last progress; `interrupted` if it was running and its process is dead."""
        if progress.state == "running" and holder_of(self.lease_file(name)) is None:
            return replace(progress, state="interrupted")
        return progress


@dataclass(frozen=True)
class Taken(Generic[P]):
    """A job whose lease this process holds."""

    name: str
    before: P
    """Its progress so far, as far as it still counts."""
    perform: Callable[[P, Callable[[P], None]], P]
    """Does the job: takes the progress at the start of this try, and a function that records later progress;
    returns the progress at the end."""
    write: Callable[[P], None]
    """Writes progress to the folder."""


Take = Callable[[ExitStack], Taken[P] | None]
"""Takes a job that can be started, and enters its lease into the stack; `None` if there is none now."""


def work(folder: JobFolder, take: Take[P], ended: Callable[[], bool] = lambda: True) -> None:
    """Do jobs until `take` has none and `ended()` is true; wait for jobs that other processes work on.

    Raises `KeyboardInterrupt` if a job was interrupted (its state is saved), and `FullDisk`.
    """
    while True:
        with ExitStack() as leases:
            taken = take(leases)
            if taken is not None:
                _try(folder, taken)
        if taken is None:
            if ended():
                return
            time.sleep(WAIT)


def _try(folder: JobFolder, taken: Taken[P]) -> None:
    before = taken.before
    if before.tries >= TRIES:
        error = f"its process died {TRIES} times; the end of its log may say why"
        taken.write(replace(before, state="failed", ended=time.time(), error=error))
        return
    beginning = time.monotonic()
    started = replace(
        before, state="running", tries=before.tries + 1, started=time.time(), ended=0.0,
        worker=str(Holder.me()), error="",
    )  # fmt: skip
    last = started

    def record(progress: P) -> None:
        nonlocal last
        last = progress
        taken.write(progress)

    record(started)
    try:
        last = work_with_log(folder.log(taken.name), lambda: taken.perform(started, record))
    except KeyboardInterrupt:  # this try does not count
        last = replace(last, state="interrupted", tries=before.tries)
    except Failed as failure:
        again = failure.for_lack_of_memory and started.tries < TRIES
        last = replace(last, state="waiting" if again else "failed", error="" if again else str(failure))
    seconds = started.seconds + time.monotonic() - beginning
    taken.write(replace(last, ended=time.time(), seconds=seconds))
    if last.state == "interrupted":
        raise KeyboardInterrupt


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


def work_with_log(log: Path, work: Callable[[], T]) -> T:
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


SETTLED = 2.0
"""Seconds without a change after which a file's time distinguishes it from its successor."""


def record_of(file: Path, read: Callable[[Any], T]) -> T | None:
    """What `read` makes of a file's values, once for every change; `None` if there is no file.

    Raises what `read` raises, and `ValueError` for a file that is not JSON.
    """
    try:
        there = file.stat()
        # Two changes within a tick of the file system's clock can leave the same state.
        settled = abs(time.time() - there.st_mtime) > SETTLED
        look = _read if settled else _read.__wrapped__
        return cast(T, look(file, read, there.st_mtime_ns, there.st_size, there.st_ino))
    except FileNotFoundError:
        return None


@lru_cache(maxsize=10_000)
def _read(file: Path, read: Callable[[Any], Any], *state: int) -> Any:
    return read(json.loads(file.read_bytes()))


def restored(kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass of which `dataclasses.asdict` and JSON made these values; their types are not checked.

    Raises `TypeError` for a field that this version does not know, and where a field is missing.
    """
    makers = _makers(cast(Any, kind))
    if unknown := values.keys() - makers.keys():
        raise TypeError(f"unknown field {min(unknown)}")
    return kind(
        **{name: value if (make := makers[name]) is None else make(value) for name, value in values.items()}
    )


@lru_cache
def _makers(kind: Any) -> dict[str, Callable[[Any], Any] | None]:
    """By field, what makes its value of that of JSON; `None`: it is the same."""
    hints = get_type_hints(kind)
    return {each.name: _maker(hints[each.name]) for each in fields(kind)}


def _maker(type_: Any) -> Callable[[Any], Any] | None:
    # The type of a value that may be null is a union.
    group: Any = next((kind for kind in (type_, *get_args(type_)) if is_dataclass(kind)), None)
    is_tuple = any(get_origin(kind) is tuple for kind in (type_, *get_args(type_)))
    if group is None and not is_tuple:
        return None

    def made(value: Any) -> Any:
        if isinstance(value, dict) and group is not None:
            if get_origin(type_) is dict:
                return {name: restored(group, inner) for name, inner in value.items()}
            return restored(group, value)
        return tuple(value) if isinstance(value, list) and is_tuple else value

    return made
