"""A queue of jobs in a folder, shared by any number of processes: whoever holds a job's lease does the job.

The function that takes the next job differs: a study has a plan, a sweep has a sampler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Literal, TypeVar

from mtl.workers.lease import Holder, holder_of
from mtl.workers.worker import TRIES, Failed, logged

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
        last = logged(folder.log(taken.name), lambda: taken.perform(started, record))
    except KeyboardInterrupt:  # this try does not count
        last = replace(last, state="interrupted", tries=before.tries)
    except Failed as failure:
        again = failure.for_lack_of_memory and started.tries < TRIES
        last = replace(last, state="waiting" if again else "failed", error="" if again else str(failure))
    seconds = started.seconds + time.monotonic() - beginning
    taken.write(replace(last, ended=time.time(), seconds=seconds))
    if last.state == "interrupted":
        raise KeyboardInterrupt
