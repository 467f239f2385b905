"""What one process does of a study: it takes a free job, trains, and measures on the heads."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import polars as pl
import torch

from mtl.analysis.measuring import function_settings, make
from mtl.analysis.trained import CHOOSING, opened_by
from mtl.config.effective import plain
from mtl.config.keys import hints_of
from mtl.config.parse import read_configuration
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.probes.measures.groups import GROUPS
from mtl.runs.folder.run import Run, version
from mtl.runs.folder.wandb_view import forget_single_run, log_probes
from mtl.study.config import StudyConfig
from mtl.study.jobs import Job, JobProgress, StudyFolder, kept_measures, trained_alike
from mtl.study.plan import make_plan
from mtl.training.assembly import with_settings_of_source
from mtl.workers import queue
from mtl.workers.collector import importing
from mtl.workers.lease import lease
from mtl.workers.queue import Taken


def work_on_study(folder: Path) -> None:
    """Do jobs of the study in a folder until all have ended."""
    StudyJobs(StudyFolder(folder), InputCache(keep=True)).work()


def work_after_check(folder: Path) -> None:
    """As `work_on_study`, on a node of a cluster; raises `InputError` if the node differs (`check_node`)."""
    jobs = StudyJobs(StudyFolder(folder), InputCache(keep=True))
    check_node(jobs.folder, jobs.inputs)
    jobs.work()


@dataclass(frozen=True)
class StudyJobs:
    """The jobs of a study, as one process does them; it keeps the inputs that it has read."""

    folder: StudyFolder
    inputs: InputCache

    def work(self) -> None:
        """Do jobs until all have ended; wait for those of other processes. Raises as `take` does."""
        forget_single_run()
        queue.work(self.folder, self.take, self.folder.ended)

    def take(self, leases: ExitStack) -> Taken[JobProgress] | None:
        """The first job that is ready; raises `InputError` if the plan is of another version of mtl."""
        snapshot = self.folder.snapshot()
        for name, job in snapshot.jobs.items():
            if not snapshot.ready(name) or not leases.enter_context(lease(self.folder.lease_file(name))):
                continue
            before = self.folder.last_progress(name)  # as the last holder left it
            if before.state not in ("finished", "failed") or before.made_of != job.made_of:
                return self._taken(job, before)
            leases.close()
        return None

    def _taken(self, job: Job, before: JobProgress) -> Taken[JobProgress]:
        """The job, with the part of its progress that still counts for what it is made of now."""
        trained = trained_alike(before.made_of, job.made_of)
        if trained:
            update_paths(self.folder, job)
        measured = {
            measure: seconds
            for measure, seconds in kept_measures(job, before).items()
            if (self.folder.run(job.name) / GROUPS[measure].file).exists()
        }
        if job.made_of["version"] != version():
            raise InputError("mtl was changed after the study was planned: run the command again")
        tries = before.tries if before.made_of == job.made_of else 0
        seconds = before.seconds if trained else 0.0
        kept = JobProgress(tries=tries, seconds=seconds, made_of=job.made_of, measured=measured)
        return Taken(
            job.name, kept, partial(self._perform, job), partial(self.folder.write_progress, job.name)
        )

    def _perform(self, job: Job, progress: JobProgress, record: Callable[[JobProgress], None]) -> JobProgress:
        """Train and measure; each measure is recorded at once, so that a stopped job repeats none."""
        run = None
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        if job.trained:
            run = self._trained(job)
            status = run.status()
            prepared = max(0.0, float(status["first_step"]) - progress.started)
            training = float(status["training_seconds"])
            progress = replace(progress, prepared_seconds=prepared, training_seconds=training)
        for name in job.measures():
            if name in progress.measured:
                continue
            start = time.monotonic()
            heads = make_measurement(name, job.measuring(self.folder.run(job.name)), self.inputs)
            if run is not None and heads is not None:
                log_probes(job.config, run, heads)
            seconds = round(time.monotonic() - start, 1)
            progress = replace(progress, measured={**progress.measured, name: seconds})
            record(progress)
        gigabytes = torch.cuda.max_memory_reserved() / 1e9 if torch.cuda.is_available() else 0.0
        return replace(progress, state="finished", gpu_gigabytes=round(gigabytes, 2))

    def _trained(self, job: Job) -> Run:
        with importing():
            from rich.console import Console

            from mtl.analysis.observers import default_observers
            from mtl.training.train import train

        console = Console(markup=False, emoji=False)
        observers = default_observers(job.config, console, self.inputs)
        return train(job.config, console=console, inputs=self.inputs, observers=observers)


def check_node(study: StudyFolder, inputs: InputCache) -> None:
    """Raise `InputError` unless the study planned here and now has the folder's jobs.

    So a machine with another version of mtl, another corpus at the same path or no access to the encoder is
    refused before it spoils a run. The runs use the inputs that are read here.
    """
    plan = make_plan(read_configuration(StudyConfig, study.study_file), study, inputs)
    wanted = {job.name: job.made_of for job in study.jobs()}
    for job in plan.jobs:
        there = wanted.get(job.name, {})
        unlike = sorted({part for part, _ in there.items() ^ job.made_of.items()})
        if unlike:
            raise InputError(
                f"{job.name} would have another {' and '.join(unlike)} here: every node needs the same "
                "version of mtl, and the same corpus at the same path"
            )


def update_paths(study: StudyFolder, job: Job) -> None:
    """Update the paths in a resumed run's config.yaml, since the study or its corpus may have moved."""
    folder = study.run(job.name)
    if not (folder / "config.yaml").exists():
        return
    recorded = with_settings_of_source(job.config.with_rates())  # as training recorded it
    config = plain(dataclasses.asdict(recorded))
    run = Run.open(folder)
    if run.config() != config:
        run.replace_config(config)


def make_measurement(name: str, settings: Mapping[str, Any], inputs: InputCache) -> pl.DataFrame | None:
    """Make a measurement with a job's settings, and write it into heads.parquet or its own files.

    Returns the table of probing, and `None` for other measurements.
    """
    group = GROUPS[name]
    if group.by_settings:
        heads: pl.DataFrame | None = resolve_name(group.by_settings)(settings, inputs)
        return heads
    options = settings.get("options", {}).get(name, {})
    own = {key: settings[key] for key in group.settings if key in hints_of(function_settings(group.code))}
    source = settings[group.corpus] if group.corpus else None
    split = settings["split"] if "split" in group.settings else CHOOSING
    for line in make(name, opened_by(settings, inputs, split, source), {**own, **options}).notes:
        print(line)
    return None


def carried_over(settings: Mapping[str, Any], inputs: InputCache) -> None:
    """Measure importance on a split of the run's corpus and of another one, in two tables."""
    for place, source in (("own", None), ("other", settings["other"])):
        table = Path(settings["target"]) / f"importance-{place}.parquet"
        make("importance", opened_by(settings, inputs, settings["split"], source, table), {})
