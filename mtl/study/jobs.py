"""The jobs of a study: its folder, each job with its progress, and the state of all."""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.files import write_json
from mtl.probes.measures.groups import measured_groups
from mtl.study.config import KINDS, MaskKind, Masks, ProbesConfig, tasks_to_probe
from mtl.tasks.in_words import counted
from mtl.workers import queue
from mtl.workers.lease import Holder, exclusive, holder_of
from mtl.workers.pool import MOST_ON_A_GPU, MOST_WITH_MPS, places_on
from mtl.workers.queue import JobFolder, State, record_of, restored
from mtl.workers.watch import QueueView, clock

MEASURED = measured_groups()
"""What can be measured on the heads of a finished run."""


@dataclass(frozen=True)
class Job:
    """A run with its measurements, or the probing of the encoder before training, as the study wants it."""

    name: str
    grid_cell: str
    """Its setup and masks, as the study's file names them: `STL, dynamic`."""
    config: TrainConfig
    """The run's configuration; for the encoder before training, the study's."""
    needs: str | None = None
    """The run that it starts from or whose masks it has."""
    probes: ProbesConfig | None = None
    """The measurements on its heads; `None`: there are none."""
    label: str | None = None
    """The label of its block."""
    probed_for: TrainConfig | None = None
    """The tasks of the study for which its heads are probed, and their corpora (`probed_for`); `None`: the
    tasks of its own corpus, which is that of all runs."""
    trained: bool = True
    """Whether it is trained; the encoder before training is only probed."""
    number: int = 0
    """Its place in the order in which jobs are started."""
    made_of: dict[str, str] = field(default_factory=dict)
    """The `version` of mtl, and fingerprints: of `configuration`, `corpus`, a local `encoder`, fixed `masks`,
    and the run that it `needs`; for each measure on its heads, of the settings."""

    @classmethod
    def of(cls, record: Any) -> Job:
        """The job of which `asdict` and JSON made this record; raises as `restored` for any other."""
        return restored(cls, record)

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration as plain values, as in the run's config.yaml."""
        settings: dict[str, Any] = plain(dataclasses.asdict(self.config))
        return settings

    @property
    def masks(self) -> Masks:
        """Its kind of masks, as the study's file names it."""
        config = self.config
        kind = MaskKind(config.pruning, config.pruning != "none" and config.gates.scope == "per_task")
        return next(name for name, known in KINDS.items() if known == kind)

    def measuring(self, run: Path) -> dict[str, Any]:
        """The settings of its measurements, as `measure` takes them; `run` is the run's folder."""
        settings = {**plain(dataclasses.asdict(self.probes or ProbesConfig())), "target": str(run)}
        if not self.trained:
            settings |= {"target": self.config.encoder.name, "out": str(run)}
        elif self.probed_for is None:
            return settings
        probed = self.probed_for or self.config
        config = plain(dataclasses.asdict(probed))
        return settings | {
            "tasks": list(tasks_to_probe(probed)), "source": config["corpus"],
            **({"instances": config["instances"]} if config["instances"] else {}),
        }  # fmt: skip

    def measures(self) -> list[str]:
        """What is measured on its heads, in this order."""
        return [name for name in MEASURED if self.probes is not None and name in self.probes.measures]

    def after(self) -> list[str]:
        """The runs that must be finished before it starts."""
        return [] if self.needs is None else [self.needs]


@dataclass(frozen=True)
class JobProgress(queue.Progress):
    """The progress of a job, and what it was made of."""

    made_of: dict[str, str] = field(default_factory=dict)
    """The fingerprints of the job when it was started."""
    prepared_seconds: float = 0.0
    """The part of `seconds` before the last try's first step: reading, tokenising, loading the encoder."""
    training_seconds: float = 0.0
    """The part of `seconds` in Lightning's loop and in evaluations."""
    gpu_gigabytes: float = 0.0
    """The maximum memory that torch reserved on a GPU, in GB."""
    measured: dict[str, float] = field(default_factory=dict)
    """The measures in the run's folder, made as `made_of` says, with the seconds that each took."""

    @classmethod
    def of(cls, record: Any) -> JobProgress:
        """The progress of which `asdict` and JSON made this record."""
        return restored(cls, record)


def trained_alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two runs have the same fingerprints of training."""
    return of_training(one) == of_training(other)


def of_training(made_of: Mapping[str, str]) -> dict[str, str]:
    """The fingerprints of a run's training."""
    return {part: fingerprint for part, fingerprint in made_of.items() if part not in MEASURED}


def kept_measures(job: Job, progress: JobProgress) -> dict[str, float]:
    """The measures in a run's folder that are still as the job wants them, with their seconds."""
    old, new = progress.made_of, job.made_of
    if not trained_alike(old, new):
        return {}
    return {
        measure: seconds
        for measure, seconds in progress.measured.items()
        if measure in job.measures() and old.get(measure) == new.get(measure)
    }


@dataclass(frozen=True)
class StudySnapshot(queue.Snapshot[Job, JobProgress]):
    """All jobs of a study and their progress, by name, at one moment."""

    def state(self, name: str) -> State:
        """A job's state by the current plan: a result with other fingerprints does not count.

        A job has failed if one of the runs that it needs has.
        """
        job, progress = self.jobs[name], self.progress[name]
        if any(self.state(needed) == "failed" for needed in job.after()):
            return "failed"
        return progress.state if progress.made_of in ({}, job.made_of) else "waiting"

    def ready(self, name: str) -> bool:
        """Whether a job can start: no process works on it, and the runs that it needs are finished."""
        startable = self.state(name) in ("waiting", "interrupted")
        return startable and all(self.state(needed) == "finished" for needed in self.jobs[name].after())

    def left_to_measure(self, name: str) -> list[str] | None:
        """What remains to be measured on a run that is trained; `None` for one that is not."""
        job, progress = self.jobs[name], self.progress[name]
        if progress.state != "finished" or not trained_alike(progress.made_of, job.made_of):
            return None
        kept = kept_measures(job, progress)
        return [measure for measure in job.measures() if measure not in kept]


T = TypeVar("T", Job, JobProgress)


@dataclass(frozen=True)
class StudyFolder(JobFolder):
    """The paths of a study's files, and what they contain."""

    @property
    def study_file(self) -> Path:
        """The study's file with all keys, as last planned."""
        return self.path / "study.yaml"

    def lease_file(self, name: str) -> Path:
        """The lease of the process that works on a job."""
        return self.path / "jobs" / f"{name}.lease"

    def command(self, holder: Holder) -> Path:
        """The lease that a call of `mtl study` holds while it works on the folder."""
        # Two containers may have the same host name and process number.
        where = hashlib.sha256(holder.namespace.encode()).hexdigest()[:8]
        return self.path / "commands" / f"{holder.host}-{where}-{holder.pid}.lease"

    def commands(self) -> list[Holder]:
        """The living calls of `mtl study` on the folder, also those that are between two runs."""
        holders = (holder_of(path) for path in sorted((self.path / "commands").glob("[!.]*.lease")))
        return [holder for holder in holders if holder is not None]

    def planning(self) -> AbstractContextManager[None]:
        """The lock under which a process changes the plan, while others wait."""
        return exclusive(self.path / "plan.lease")

    def jobs(self) -> list[Job]:
        """All jobs, in the order in which they are started."""
        files = (self.path / "jobs").glob("*.job.json")
        jobs = (self._record(Job, file) for file in files)  # a command that plans may just have removed one
        return sorted((job for job in jobs if job is not None), key=lambda job: job.number)

    def not_to_probe(self) -> frozenset[Path]:
        """The folders of runs that are not to be probed."""
        return frozenset(self.run(job.name) for job in self.jobs() if "probes" not in job.measures())

    def write_job(self, job: Job) -> None:
        """Write a job."""
        write_json(self._job(job.name), asdict(job))

    def remove_job(self, name: str) -> None:
        """Remove a job and its progress."""
        self._job(name).unlink(missing_ok=True)
        self._progress(name).unlink(missing_ok=True)

    def snapshot(self, jobs: Sequence[Job] | None = None) -> StudySnapshot:
        """These jobs (`None`: all) and their progress."""
        by_name = {job.name: job for job in (self.jobs() if jobs is None else jobs)}
        return StudySnapshot(by_name, {name: self.progress(name) for name in by_name})

    def ended(self) -> bool:
        """Whether all jobs have ended."""
        snapshot = self.snapshot()
        return snapshot.ended() == len(snapshot.jobs)

    def progress(self, name: str) -> JobProgress:
        """The progress of a job; `running` only while its process lives."""
        return self.living(name, self.last_progress(name))

    def last_progress(self, name: str) -> JobProgress:
        """The progress of a job, as last written."""
        return self._record(JobProgress, self._progress(name)) or JobProgress()

    def write_progress(self, name: str, progress: JobProgress) -> None:
        """Write the progress of a job."""
        write_json(self._progress(name), asdict(progress))

    def holders(self, jobs: Sequence[Job]) -> dict[str, Holder]:
        """The living processes that work on these jobs, by job."""
        holders = {job.name: holder_of(self.lease_file(job.name)) for job in jobs}
        return {name: holder for name, holder in holders.items() if holder is not None}

    def epochs(self, name: str) -> int:
        """The last epoch after which a run was evaluated; 0 if there is none."""
        try:
            lines = (self.run(name) / "history.csv").read_text(encoding="utf-8").splitlines()
            return int(lines[-1].split(",")[0]) if len(lines) > 1 else 0
        except (OSError, ValueError):
            return 0

    def _record(self, kind: type[T], file: Path) -> T | None:
        """A job or progress; `None` if there is no file. Raises `InputError` for a damaged one."""
        try:
            return record_of(file, kind.of)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            message = " ".join(str(error).split())
            raise InputError(
                f"{file} cannot be read ({message}): it is damaged, or from another version of mtl; remove "
                "it, and run 'mtl study' with the study's file again"
            ) from error

    def _job(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.job.json"

    def _progress(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.progress.json"


@dataclass(frozen=True)
class StudyView(QueueView[StudySnapshot]):
    """What users see of a study: these jobs, or all in its folder."""

    folder: StudyFolder
    jobs: Sequence[Job] | None = None
    workers: int | None = None
    """The number of processes for the estimate of the remaining time; `None`: that of running jobs."""

    def snapshot(self) -> StudySnapshot:
        """The jobs and their progress now."""
        return self.folder.snapshot(self.jobs)

    def texts(self, snapshot: StudySnapshot, name: str) -> dict[str, str]:
        """The setup, and the epochs of a run that was started."""
        job, counting = snapshot.jobs[name], snapshot.state(name) != "waiting"
        epochs = f"{self.folder.epochs(name)}/{job.config.max_epochs}" if job.trained and counting else ""
        return {"setup": job.grid_cell, "epochs": epochs}

    def remark(self, snapshot: StudySnapshot, name: str) -> str:
        """The process that works on a job, or the runs that the job waits for."""
        unfinished = [other for other in snapshot.jobs[name].after() if snapshot.state(other) != "finished"]
        if snapshot.state(name) != "waiting" or not unfinished:
            return super().remark(snapshot, name)
        more = f" and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
        return f"after {unfinished[0]}{more}"

    def why_failed(self, snapshot: StudySnapshot, name: str) -> str:
        """The job's own error, or the failed run that it needs."""
        failed = [other for other in snapshot.jobs[name].after() if snapshot.state(other) == "failed"]
        return f"{failed[0]} has failed" if failed else super().why_failed(snapshot, name)

    def ending(self, snapshot: StudySnapshot, name: str) -> str:
        """How long a job took."""
        finished = snapshot.state(name) == "finished"
        return f" after {clock(snapshot.progress[name].seconds)}" if finished else ""

    def outlook(self, snapshot: StudySnapshot) -> str:
        """How long the rest will take."""
        left, running = remaining_seconds(snapshot), list(snapshot.states().values()).count("running")
        workers = max(1, running if self.workers is None else self.workers)
        by = f" with {counted(workers, 'worker')}" if workers > 1 else ""
        return f"about {clock(left / workers)} remaining{by}" if left else ""

    def capacity(self, count: int, gpus: Sequence[str]) -> int:
        """With GPUs, one process on each until a finished run has shown how many fit."""
        if not gpus:
            return super().capacity(count, gpus)
        places = places_on(gpus[0], self._peak())
        return min(count or len(gpus) * MOST_ON_A_GPU, len(gpus) * places)

    def fits(self, gpu: str) -> int:
        """As many runs as have room beside each other, if all need what the largest finished one needed."""
        return places_on(gpu, self._peak(), most=MOST_WITH_MPS)

    def _peak(self) -> float | None:
        known = (progress.gpu_gigabytes for progress in self.snapshot().progress.values())
        return max(filter(None, known), default=None)

    def done(self) -> dict[str, float]:
        """The part of each training's epochs that has been evaluated, times its size (`_size`)."""
        return {
            name: self.folder.epochs(name) / job.config.max_epochs * _size(job)
            for name, job in self.snapshot().jobs.items()
            if job.trained
        }


def remaining_seconds(snapshot: StudySnapshot) -> float | None:
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


def _measuring_seconds(snapshot: StudySnapshot) -> dict[str, float]:
    """The mean seconds that each measure took per task of a trained run."""
    taken: dict[str, list[float]] = {}
    for name, job in snapshot.jobs.items():
        for measure, seconds in snapshot.progress[name].measured.items() if job.trained else ():
            taken.setdefault(measure, []).append(seconds / len(job.config.tasks))
    return {measure: statistics.mean(seconds) for measure, seconds in taken.items()}


def _size(job: Job) -> float:
    """The work of a job in epochs of one task; with a mask per task, a sentence is a row per task."""
    if not job.trained:
        return 0.5
    tasks, kind = len(job.config.tasks), KINDS[job.masks]
    rows = tasks if kind.per_task else 1
    return job.config.max_epochs * (1 + 0.1 * (tasks - 1)) * rows
