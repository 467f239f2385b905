"""The state of a study, read from its folder without torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mtl.config.part import row_per_task
from mtl.study.config import KINDS
from mtl.study.jobs.folder import StudyFolder
from mtl.study.jobs.job import Job, Snapshot
from mtl.tasks.in_words import counted
from mtl.workers.pool import MOST_ON_A_GPU, places_on
from mtl.workers.watch import View, clock


@dataclass(frozen=True)
class StudyView(View[Snapshot]):
    """What users see of a study: these jobs, or all in its folder."""

    folder: StudyFolder
    jobs: Sequence[Job] | None = None
    workers: int | None = None
    """The number of processes for the estimate of the remaining time; `None`: that of running jobs."""

    def snapshot(self) -> Snapshot:
        """The jobs and their progress now."""
        return self.folder.snapshot(self.jobs)

    def texts(self, snapshot: Snapshot, name: str) -> dict[str, str]:
        """The setup, and the epochs of a run that was started and has not finished."""
        job, counting = snapshot.jobs[name], snapshot.state(name) in ("running", "interrupted", "failed")
        epochs = f"{self.folder.epochs(name)}/{job.config.max_epochs}" if job.trained and counting else ""
        return {"setup": job.grid_cell, "epochs": epochs}

    def remark(self, snapshot: Snapshot, name: str) -> str:
        """The process that works on a job, or the runs that the job waits for."""
        unfinished = [other for other in snapshot.jobs[name].after() if snapshot.state(other) != "finished"]
        if snapshot.state(name) != "waiting" or not unfinished:
            return super().remark(snapshot, name)
        more = f" and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
        return f"after {unfinished[0]}{more}"

    def why_failed(self, snapshot: Snapshot, name: str) -> str:
        """The job's own error, or the failed run that it needs."""
        failed = [other for other in snapshot.jobs[name].after() if snapshot.state(other) == "failed"]
        return f"{failed[0]} has failed" if failed else super().why_failed(snapshot, name)

    def ending(self, snapshot: Snapshot, name: str) -> str:
        """How long a job took."""
        finished = snapshot.state(name) == "finished"
        return f" after {clock(snapshot.progress[name].seconds)}" if finished else ""

    def outlook(self, snapshot: Snapshot) -> str:
        """How long the rest will take."""
        left, running = remaining(snapshot), list(snapshot.states().values()).count("running")
        workers = max(1, running if self.workers is None else self.workers)
        by = f" with {counted(workers, 'worker')}" if workers > 1 else ""
        return f"about {clock(left / workers)} remaining{by}" if left else ""

    def capacity(self, count: int, gpus: Sequence[str]) -> int:
        """With GPUs, one process on each until a finished run has shown how many fit."""
        if not gpus:
            return super().capacity(count, gpus)
        known = (progress.gpu_gigabytes for progress in self.snapshot().progress.values())
        places = places_on(gpus[0], max(filter(None, known), default=None))
        return min(count or len(gpus) * MOST_ON_A_GPU, len(gpus) * places)


def remaining(snapshot: Snapshot) -> float | None:
    """Seconds of work that remain, for one process; `None` before the first job has finished.

    A job takes as long as the mean finished job of its grid cell. If there is none, the time of all finished
    jobs is scaled by tasks and epochs (`_size`). On a run that is already trained, only measures remain, each
    with its mean time per task; a measure that no run has yet does not count.
    """
    states = snapshot.states()
    finished = [job for name, job in snapshot.jobs.items() if states[name] == "finished"]
    if not finished:
        return None
    seconds = {job.name: snapshot.progress[job.name].spent() for job in finished}
    by_cell = {
        cell: statistics.mean(seconds[job.name] for job in finished if job.grid_cell == cell)
        for cell in {job.grid_cell for job in finished}
    }
    per_unit = sum(seconds.values()) / sum(_size(job) for job in finished)
    per_task = _measuring_seconds(snapshot)
    left = 0.0
    for name, job in snapshot.jobs.items():
        measures = snapshot.left_to_measure(name)
        if states[name] in ("finished", "failed"):
            continue
        if measures is not None:
            left += sum(per_task.get(measure, 0.0) * len(job.config.tasks) for measure in measures)
        else:
            typical = by_cell.get(job.grid_cell, per_unit * _size(job))
            left += max(0.0, typical - snapshot.progress[name].spent())
    return left


def _measuring_seconds(snapshot: Snapshot) -> dict[str, float]:
    """The mean seconds that each measure took per task of a trained run."""
    taken: dict[str, list[float]] = {}
    for name, job in snapshot.jobs.items():
        for measure, seconds in snapshot.progress[name].measured.items() if job.trained else ():
            taken.setdefault(measure, []).append(seconds / len(job.config.tasks))
    return {measure: statistics.mean(seconds) for measure, seconds in taken.items()}


def _size(job: Job) -> float:
    """The work of a job in epochs of one task; with masks or heads per task, a sentence is a row per task."""
    if not job.trained:
        return 0.5
    tasks, kind = len(job.config.tasks), KINDS[job.masks]
    rows = tasks if kind.per_task or row_per_task(job.config) else 1
    return job.config.max_epochs * (1 + 0.1 * (tasks - 1)) * rows
