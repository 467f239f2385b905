"""One process's share of a study: it takes a free job, does it, and takes the next."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection
from dataclasses import replace

import torch

from mtl.config.effective import plain
from mtl.config.parse import configuration_from
from mtl.config.schema import TrainConfig
from mtl.config.yaml_file import dump
from mtl.errors import InputError
from mtl.files import write_text
from mtl.models.inputs import InputCache
from mtl.runs.folder.run import Run
from mtl.study.config import MeasureGroup
from mtl.study.folder import StudyFolder
from mtl.study.job import Job, Progress, code_part, file_of, kept_measures, trained_alike
from mtl.study.jobs import measuring_code, training_code
from mtl.study.measure import measure
from mtl.study.study_claims import write_claims_of
from mtl.study.wandb_study import log_probes
from mtl.training.initial_model import with_settings_of_source
from mtl.workers.lease import Holder, lease, now
from mtl.workers.worker import TRIES, Failed, logged

WAIT = 1.0
"""Seconds between looks at jobs that others work on."""


def work(study: StudyFolder, inputs: InputCache) -> None:
    """Do jobs until all have ended, waiting for those that other processes work on.

    Raises `KeyboardInterrupt` if a run was interrupted (its state is saved), `FullDisk`, and `InputError` if
    the code has changed since the study was planned.
    """
    while True:
        snapshot = study.snapshot()
        if any(attempt(study, job, inputs) for name, job in snapshot.jobs.items() if snapshot.ready(name)):
            continue
        if snapshot.ended() == len(snapshot.jobs):
            return
        time.sleep(WAIT)


def attempt(study: StudyFolder, job: Job, inputs: InputCache) -> bool:
    """Do a job, unless another process has it or has done it; returns whether this process did it."""
    with lease(study.lease_file(job.name)) as mine:
        if not mine:
            return False
        before = study.last_progress(job.name)
        if before.state in ("finished", "failed") and before.made_of == job.made_of:
            return False
        if trained_alike(before.made_of, job.made_of):
            update_paths(study, job)
        measured = {
            measure: seconds
            for measure, seconds in kept_measures(job, before).items()
            if (study.run(job.name) / file_of(measure)).exists()
        }
        _check_code(job, before, measured)
        fresh = before.made_of != job.made_of
        tries = 0 if fresh else before.tries
        if before.state == "interrupted" and not fresh:
            tries = max(0, tries - 1)  # a try that was asked to stop does not count
        seconds = before.seconds if trained_alike(before.made_of, job.made_of) else 0.0
        progress = Progress(
            "running", job.made_of, tries + 1, now(), 0.0, seconds,
            worker=str(Holder.me()), measured=measured,
        )  # fmt: skip
        if progress.tries > TRIES:
            error = f"its process died {TRIES} times; the end of its log may say why"
            study.write_progress(job.name, replace(progress, state="failed", ended=now(), error=error))
            return True
        study.write_progress(job.name, progress)
        ended = _outcome(study, job, inputs, progress)
        spent = progress.seconds + now() - progress.started
        study.write_progress(job.name, replace(ended, ended=now(), seconds=spent))
        if ended.state == "interrupted":
            raise KeyboardInterrupt
        return True


def _check_code(job: Job, before: Progress, measured: Collection[MeasureGroup]) -> None:
    """Raise `InputError` if this process runs other code than the job was planned with."""
    probe = job.probe or {}
    corpus = job.config.get("corpus", {}) if job.config else probe.get("source", {})
    left = [name for name in job.measures() if name not in measured]
    now_of = {code_part(name): measuring_code(name, probe, corpus) for name in left}
    if not job.config:
        now_of["code"] = measuring_code("probes", probe, corpus)
    elif before.state != "finished" or not trained_alike(before.made_of, job.made_of):
        now_of["code"] = training_code(job.config)
    if any(code != job.made_of.get(part, code) for part, code in now_of.items()):
        raise InputError("the code was changed after the study was planned: give the same command again")


def update_paths(study: StudyFolder, job: Job) -> None:
    """Update the paths in a resumed run's config.yaml; the study or its corpus may have moved."""
    path = study.run(job.name) / "config.yaml"
    if not path.exists():
        return
    wanted = configuration_from(TrainConfig, job.config, f"run {job.name}")
    config = plain(dataclasses.asdict(with_settings_of_source(wanted)))  # as training recorded it
    if Run.open(path.parent).config() != config:
        write_text(path, dump(config))


def _outcome(study: StudyFolder, job: Job, inputs: InputCache, progress: Progress) -> Progress:
    try:
        first_step, training = logged(study.log(job.name), lambda: _perform(study, job, inputs, progress))
    except KeyboardInterrupt:
        return replace(study.last_progress(job.name), state="interrupted")
    except Failed as failure:
        progress = study.last_progress(job.name)  # with what was measured before
        # Another run may have used the GPU's memory: this one is tried again.
        again = isinstance(failure.__cause__, torch.cuda.OutOfMemoryError) and progress.tries < TRIES
        return replace(progress, state="waiting" if again else "failed", error=str(failure))
    gigabytes = torch.cuda.max_memory_reserved() / 1e9 if torch.cuda.is_available() else 0.0
    return replace(
        study.last_progress(job.name),
        state="finished",
        prepared_seconds=max(0.0, first_step - progress.started),
        training_seconds=training,
        gpu_gigabytes=round(gigabytes, 2),
    )


def _perform(study: StudyFolder, job: Job, inputs: InputCache, progress: Progress) -> tuple[float, float]:
    """Train and measure; returns the time of the first step (since 1970) and that of training, in seconds.

    Every measure that was made is written into the progress, so that a stopped job does not repeat it.
    """
    from rich.console import Console

    from mtl.analysis.observers import default_observers
    from mtl.training.train import train

    first_step, training, trained = 0.0, 0.0, None
    if job.config:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        if job.claims_from:
            write_claims_of(job, study)
        config = configuration_from(TrainConfig, job.config, f"run {job.name}")
        console = Console(markup=False, emoji=False)
        observers = default_observers(config, console, inputs)
        run = train(config, console=console, inputs=inputs, observers=observers)
        trained = config, run
        status = run.status()
        first_step, training = float(status["first_step"]), float(status["training_seconds"])
    for name in job.measures():
        if name in progress.measured:
            continue
        assert job.probe is not None
        start = now()
        heads = measure(name, job.probe, inputs)
        if trained is not None and heads is not None:
            log_probes(*trained, heads)
        progress = replace(progress, measured={**progress.measured, name: round(now() - start, 1)})
        study.write_progress(job.name, progress)
    return first_step, training
