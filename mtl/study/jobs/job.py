"""A job of a study, its progress, and the states of all jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig
from mtl.probes.measures.groups import measured_groups
from mtl.study.config import KINDS, MaskKind, Masks, ProbesConfig
from mtl.study.extensions import MasksToMake
from mtl.study.grid.task_sets import probed_tasks
from mtl.workers import queue
from mtl.workers.queue import State
from mtl.workers.records import restored

MEASURED = measured_groups()
"""What can be measured on the heads of a finished run."""


def code_part(measure: str) -> str:
    """The part of `Job.made_of` for the code of a measure; that of its settings has the measure's name."""
    return f"{measure}.code"


_NOT_OF_TRAINING = {*MEASURED, *map(code_part, MEASURED)}
"""Parts of `Job.made_of` that can change without the training being repeated."""


@dataclass(frozen=True)
class Job:
    """A run with its measurements, or the probing of the encoder before training, as the study wants it."""

    name: str
    grid_cell: str
    """Its setup and masks, as the study's file names them: `single dynamic`."""
    config: TrainConfig
    """The run's configuration; for the encoder before training, the study's."""
    needs: str | None = None
    """The run that it starts from or whose masks it has."""
    probes: ProbesConfig | None = None
    """The measurements on its heads; `None`: there are none."""
    label: str | None = None
    """The label of its block; with masks that the study makes, also their kind."""
    prepared_from: tuple[str, ...] = ()
    """The runs that it is prepared from (`Preparation`)."""
    makes: MasksToMake | None = field(default=None, compare=False)
    """The masks that the study makes for it; they are files once the plan is carried out."""
    probed_for: TrainConfig | None = None
    """The tasks of the study for which its heads are probed, and their corpora (`probed_for`); `None`: the
    tasks of its own corpus, which is that of all runs."""
    trained: bool = True
    """Whether it is trained; the encoder before training is only probed."""
    number: int = 0
    """Its place in the order in which jobs are started."""
    made_of: dict[str, str] = field(default_factory=dict)
    """Fingerprints: of `configuration`, `corpus`, `code`, a local `encoder`, fixed `masks`, the run that it
    `needs`, and what it is prepared with (`Preparation.part`); for each measure on its heads, of the settings
    (`importance`) and the code (`importance.code`)."""

    @classmethod
    def of(cls, record: Any) -> Job:
        """The job of which `asdict` and JSON, in this version or an older one, made this record.

        Raises `AttributeError`, `LookupError` or `TypeError` for a record of no known version.
        """
        values = _with_known_parts(record)
        if "setup" in values:  # the name of a field in versions up to 6ad6363
            values["grid_cell"] = values.pop("setup")
        if "claims_from" in values:  # up to 0750196
            values["prepared_from"] = values.pop("claims_from")
        if "probe" in values:  # up to 0750196, with arguments that now follow from the configuration
            values["probes"] = probe = values.pop("probe")
            if not values["config"]:
                encoder = {"name": probe["target"]}
                values["config"] = {"tasks": probe["tasks"], "corpus": probe["source"], "encoder": encoder}
                values["trained"] = False
        return restored(cls, values)

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
            "tasks": list(probed_tasks(probed)), "source": config["corpus"],
            **({"instances": config["instances"]} if config["instances"] else {}),
        }  # fmt: skip

    def measures(self) -> list[str]:
        """What is measured on its heads, in this order."""
        return [name for name in MEASURED if self.probes is not None and name in self.probes.measures]

    def after(self) -> list[str]:
        """The runs that must be finished before it starts."""
        return [*([] if self.needs is None else [self.needs]), *self.prepared_from]


@dataclass(frozen=True)
class Progress(queue.Progress):
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
    def of(cls, record: Any) -> Progress:
        """The progress of which `asdict` and JSON made this record."""
        return restored(cls, _with_known_parts(record))


def _with_known_parts(record: Any) -> dict[str, Any]:
    """The values of a job or of its progress, with the current names of fingerprints."""
    values, made_of = dict(record), dict(record.get("made_of", {}))
    if "probing" in made_of:  # up to 6a85c4b the code of all measures, which were probes by default
        made_of[code_part("probes")] = made_of.pop("probing")
    return values | {"made_of": made_of}


def trained_alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two runs have the same fingerprints of training."""
    return of_training(one) == of_training(other)


def of_training(made_of: Mapping[str, str]) -> dict[str, str]:
    """The fingerprints of a run's training."""
    return {part: fingerprint for part, fingerprint in made_of.items() if part not in _NOT_OF_TRAINING}


def kept_measures(job: Job, progress: Progress) -> dict[str, float]:
    """The measures in a run's folder that are still as the job wants them, with their seconds."""
    old, new = progress.made_of, job.made_of
    if not trained_alike(old, new):
        return {}
    return {
        measure: seconds
        for measure, seconds in progress.measured.items()
        if measure in job.measures()
        and all(old.get(part) == new.get(part) for part in (measure, code_part(measure)))
    }


@dataclass(frozen=True)
class Snapshot(queue.Snapshot[Job, Progress]):
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
