"""A job of a study, its progress, and the states of all jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from mtl.study.config import MeasureGroup
from mtl.workers.lease import now

State = Literal["waiting", "running", "finished", "failed", "interrupted"]

MEASURED = get_args(MeasureGroup)
"""What can be measured on the heads of a finished run."""


def file_of(measure: MeasureGroup) -> str:
    """The file in the run's folder that a measure is complete with."""
    files: Mapping[MeasureGroup, str] = {"curve": "curve.parquet", "carry_over": "importance-other.parquet"}
    return files.get(measure, "heads.parquet")


def code_part(measure: str) -> str:
    """The part of `Job.made_of` for the code of a measure; that of its settings has the measure's name."""
    return f"{measure}.code"


_NOT_OF_TRAINING = {*MEASURED, *map(code_part, MEASURED)}
"""Parts of `Job.made_of` that can change without the training being repeated."""


@dataclass(frozen=True)
class Job:
    """A run with its measurements, or the probing of the encoder before training, as the study wants it."""

    name: str
    number: int
    grid_cell: str
    """Its setup and masks as the study's file names them: `single dynamic`."""
    config: dict[str, Any]
    """The run's configuration; empty for the encoder before training."""
    made_of: dict[str, str]
    """Fingerprints: of `configuration`, `corpus`, `code`, a local `encoder`, given or drawn `masks`, the run
    that it `needs` and what is prepared for it (`Preparation.part`); for each measure that is made on its
    heads, of its settings (`importance`) and of its code (`importance.code`)."""
    needs: str | None = None
    """The run that it starts from, or whose masks it has."""
    probe: dict[str, Any] | None = None
    """The settings of the measurements on its heads; `None`: its heads are not measured."""
    prepared_from: list[str] = field(default_factory=list)
    """The runs that it is prepared from (`Preparation`)."""

    def measures(self) -> list[MeasureGroup]:
        """What is measured on its heads, in the order of measuring."""
        # Jobs of versions that could only probe have no `measures`.
        wanted = () if self.probe is None else self.probe.get("measures", ["probes"])
        return [measure for measure in MEASURED if measure in wanted]

    def after(self) -> list[str]:
        """The runs that have to be finished before it starts."""
        return [*([] if self.needs is None else [self.needs]), *self.prepared_from]


@dataclass(frozen=True)
class Progress:
    """The progress of a job; written only by the process that holds its lease."""

    state: State = "waiting"
    made_of: dict[str, str] = field(default_factory=dict)
    """The fingerprints of the job when it was started."""
    tries: int = 0
    started: float = 0.0
    ended: float = 0.0
    """Start and end of the last try, in seconds since 1970; 0: not yet."""
    seconds: float = 0.0
    """Seconds of work, over all tries that have ended."""
    prepared_seconds: float = 0.0
    """Of these, before the last try's first step: reading, tokenising, loading the encoder."""
    training_seconds: float = 0.0
    """Of these, in Lightning's loop and evaluations."""
    worker: str = ""
    gpu_gigabytes: float = 0.0
    """Most memory reserved on a GPU."""
    error: str = ""
    measured: dict[MeasureGroup, float] = field(default_factory=dict)
    """The measures that are in the run's folder, made as `made_of` says, with the seconds that each took."""


def trained_alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two runs have the same fingerprints, except those of measures on their heads."""
    return of_training(one) == of_training(other)


def of_training(made_of: Mapping[str, str]) -> dict[str, str]:
    """The fingerprints of a run's training."""
    return {part: fingerprint for part, fingerprint in made_of.items() if part not in _NOT_OF_TRAINING}


def measured_alike(measure: str, one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two runs have the same fingerprints of a measure."""
    return all(one.get(part) == other.get(part) for part in (measure, code_part(measure)))


def kept_measures(job: Job, progress: Progress) -> dict[MeasureGroup, float]:
    """The measures of a run's earlier progress that are as the job wants them, with their seconds."""
    if not trained_alike(progress.made_of, job.made_of):
        return {}
    return {
        measure: seconds
        for measure, seconds in progress.measured.items()
        if measure in job.measures() and measured_alike(measure, progress.made_of, job.made_of)
    }


@dataclass(frozen=True)
class Snapshot:
    """All jobs of a study and their progress, by name, at one moment."""

    jobs: Mapping[str, Job]
    progress: Mapping[str, Progress]

    def state(self, name: str) -> State:
        """A job's state as the study is planned now; a result with other fingerprints does not count.

        A job has failed if one that it needs has.
        """
        job, progress = self.jobs[name], self.progress[name]
        if any(self.state(needed) == "failed" for needed in job.after()):
            return "failed"
        return progress.state if progress.made_of in ({}, job.made_of) else "waiting"

    def states(self) -> dict[str, State]:
        """Every job's state."""
        return {name: self.state(name) for name in self.jobs}

    def ready(self, name: str) -> bool:
        """Whether a job can be started: no process works on it, and the runs that it needs are finished."""
        startable = self.state(name) in ("waiting", "interrupted")
        return startable and all(self.state(needed) == "finished" for needed in self.jobs[name].after())

    def left_to_measure(self, name: str) -> list[MeasureGroup] | None:
        """What is left to be measured of a run that is trained; `None` for one that is not."""
        job, progress = self.jobs[name], self.progress[name]
        if progress.state != "finished" or not trained_alike(progress.made_of, job.made_of):
            return None
        return [measure for measure in job.measures() if measure not in kept_measures(job, progress)]

    def ended(self) -> int:
        """The number of jobs for which nothing is left to do."""
        return sum(state in ("finished", "failed") for state in self.states().values())

    def seconds(self, name: str) -> float:
        """Seconds of work on a job so far."""
        progress = self.progress[name]
        return progress.seconds + (now() - progress.started if progress.state == "running" else 0.0)
