"""A queue of made-up jobs: which tries count, and what is kept of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from mtl.workers.lease import Holder, holder_of, lease
from mtl.workers.queue import TRIES, JobFolder, Progress, Snapshot, Taken, work

Perform = Callable[[Progress, Callable[[Progress], None]], Progress]


@dataclass(frozen=True)
class Half(Progress):
    """The progress of a job of two halves."""

    halves: int = 0


@dataclass
class Jobs:
    """Jobs in memory, and every state that was written of each."""

    folder: JobFolder
    performs: dict[str, Perform]
    progress: dict[str, Half] = field(default_factory=dict)
    states: list[str] = field(default_factory=list)

    def take(self, leases: ExitStack) -> Taken[Half] | None:
        for name, perform in self.performs.items():
            before = self.progress.get(name, Half())
            if before.state in ("waiting", "interrupted", "running"):
                assert leases.enter_context(lease(self.folder.lease_file(name)))
                return Taken(name, before, perform, partial(self.write, name))
        return None

    def write(self, name: str, progress: Half) -> None:
        assert holder_of(self.folder.lease_file(name)) == Holder.me()
        self.progress[name] = progress
        self.states.append(progress.state)

    def work(self) -> None:
        work(self.folder, self.take)


@pytest.fixture
def jobs(tmp_path: Path) -> Callable[..., Jobs]:
    return lambda **performs: Jobs(JobFolder(tmp_path), performs)


def finishes(progress: Half, record: Callable[[Half], None]) -> Half:
    return replace(progress, state="finished", halves=2)


def test_a_gpu_without_memory_is_tried_again_and_other_errors_are_not(jobs) -> None:
    def without_memory(times: int) -> Perform:
        left = [torch.cuda.OutOfMemoryError("CUDA out of memory")] * times

        def perform(progress: Half, record: Callable[[Half], None]) -> Half:
            if left:
                raise left.pop()
            return finishes(progress, record)

        return perform

    queue = jobs(twice=without_memory(TRIES - 1), always=without_memory(TRIES), bug=lambda *_: 1 / 0)
    queue.work()
    twice, always, bug = queue.progress.values()
    assert (twice.state, twice.tries, twice.error) == ("finished", TRIES, "")
    assert (always.state, always.tries, always.error) == (
        "failed",
        TRIES,
        "OutOfMemoryError: CUDA out of memory",
    )
    assert (bug.state, bug.tries, bug.error) == ("failed", 1, "ZeroDivisionError: division by zero")
    assert queue.states[:3] == ["running", "waiting", "running"]
    assert not list(queue.folder.path.glob("leases/*"))


def test_what_was_recorded_stays_and_an_interrupted_try_does_not_count(jobs) -> None:
    def interrupted(progress: Half, record: Callable[[Half], None]) -> Half:
        record(replace(progress, halves=1))
        raise KeyboardInterrupt

    queue = jobs(a=interrupted, b=finishes)
    with pytest.raises(KeyboardInterrupt):
        queue.work()
    assert (queue.progress["a"].state, queue.progress["a"].tries, queue.progress["a"].halves) == (
        "interrupted", 0, 1,
    )  # fmt: skip
    assert "b" not in queue.progress
    queue.performs["a"] = finishes
    queue.work()
    assert [progress.state for progress in queue.progress.values()] == ["finished", "finished"]
    assert queue.progress["a"].tries == 1


def test_a_clock_that_is_set_back_takes_no_time_away(jobs, monkeypatch) -> None:
    def sets_the_clock_back(progress: Half, record: Callable[[Half], None]) -> Half:
        monkeypatch.setattr(time, "time", lambda: progress.started - 3600)
        return finishes(progress, record)

    queue = jobs(a=sets_the_clock_back)
    queue.work()
    assert 0 <= queue.progress["a"].seconds < 60


def test_a_job_whose_processes_died_is_given_up_and_runs_only_while_its_process_lives(jobs) -> None:
    queue = jobs(a=finishes)
    queue.progress["a"] = died = Half("running", TRIES, halves=1)
    assert queue.folder.living("a", died).state == "interrupted"
    with lease(queue.folder.lease_file("a")):
        assert queue.folder.living("a", died) is died
    queue.work()
    assert queue.progress["a"].error == "its process died 3 times; the end of its log may say why"
    assert queue.progress["a"].halves == 1
    assert Snapshot({"a": None}, queue.progress).ended() == 1
