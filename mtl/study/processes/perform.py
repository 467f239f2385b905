"""What one process does of a study: it takes a free job, finds out what is left to do, and does it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from mtl.config.effective import plain
from mtl.config.parse import read_configuration
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.probes.measures.groups import GROUPS
from mtl.runs.folder.run import Run
from mtl.study.config import StudyConfig
from mtl.study.extensions import preparation_of
from mtl.study.jobs.folder import StudyFolder
from mtl.study.jobs.job import Job, Progress, code_part, kept_measures, trained_alike
from mtl.study.jobs.plan import make_plan
from mtl.study.jobs.wanted import codes_of
from mtl.study.measures.measure import measure
from mtl.study.wandb_study import log_probes
from mtl.training.initial_model import with_settings_of_source
from mtl.workers import queue
from mtl.workers.collector import importing
from mtl.workers.lease import lease
from mtl.workers.queue import Taken


def work_on(folder: Path) -> None:
    """Do jobs of the study in a folder until all have ended."""
    StudyJobs(StudyFolder(folder), InputCache(keep=True)).work()


def work_after_check(folder: Path) -> None:
    """As `work_on`, on a node of a cluster; raises `InputError` if the node differs (`check_node`)."""
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
        queue.work(self.folder, self.take, self.folder.ended)

    def take(self, leases: ExitStack) -> Taken[Progress] | None:
        """The first job that is ready; raises `InputError` if the code has changed since the plan."""
        snapshot = self.folder.snapshot()
        for name, job in snapshot.jobs.items():
            if not snapshot.ready(name) or not leases.enter_context(lease(self.folder.lease_file(name))):
                continue
            before = self.folder.last_progress(name)  # as the last holder left it
            if before.state not in ("finished", "failed") or before.made_of != job.made_of:
                return self._taken(job, before)
            leases.close()
        return None

    def _taken(self, job: Job, before: Progress) -> Taken[Progress]:
        """The job, with the part of its progress that still counts for what it is made of now."""
        trained = trained_alike(before.made_of, job.made_of)
        if trained:
            update_paths(self.folder, job)
        measured = {
            measure: seconds
            for measure, seconds in kept_measures(job, before).items()
            if (self.folder.run(job.name) / GROUPS[measure].file).exists()
        }
        _check_code(job, before, measured)
        tries = before.tries if before.made_of == job.made_of else 0
        seconds = before.seconds if trained else 0.0
        kept = Progress(tries=tries, seconds=seconds, made_of=job.made_of, measured=measured)
        return Taken(
            job.name, kept, partial(self._perform, job), partial(self.folder.write_progress, job.name)
        )

    def _perform(self, job: Job, progress: Progress, record: Callable[[Progress], None]) -> Progress:
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
            heads = measure(name, job.measuring(self.folder.run(job.name)), self.inputs)
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

        if job.prepared_from and (preparation := preparation_of(job.settings)) is not None:
            preparation.prepare(job, self.folder)
        console = Console(markup=False, emoji=False)
        observers = default_observers(job.config, console, self.inputs)
        return train(job.config, console=console, inputs=self.inputs, observers=observers)


def _check_code(job: Job, before: Progress, measured: Collection[str]) -> None:
    """Raise `InputError` if the code of this process is not the one that the job was planned with."""
    codes = codes_of(job)
    if before.state == "finished" and job.trained and trained_alike(before.made_of, job.made_of):
        del codes["code"]
    kept = {code_part(name) for name in measured}
    if any(code != job.made_of.get(part, code) for part, code in codes.items() if part not in kept):
        raise InputError("the code was changed after the study was planned: run the command again")


def check_node(study: StudyFolder, inputs: InputCache) -> None:
    """Raise `InputError` unless the study planned here and now has the folder's jobs.

    So a machine with other code, another corpus at the same path or no access to the encoder is refused
    before it spoils a run. The runs use the inputs that are read here.
    """
    # Finished runs that were kept although the code has changed are not repeated.
    plan = make_plan(read_configuration(StudyConfig, study.study_file), study, inputs, keep_code=True)
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
    config = plain(dataclasses.asdict(with_settings_of_source(job.config)))  # as training recorded it
    run = Run.open(folder)
    if run.config() != config:
        run.create(config)
