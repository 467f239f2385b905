"""What one process does of a sweep: it resumes free trials, and asks Optuna for new ones."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from mtl.errors import InputError
from mtl.files import full_disk
from mtl.study.sweep.file import Sweep
from mtl.study.sweep.folder import Progress, SweepFolder, is_scored, progress_of, trials_of, write_progress
from mtl.study.sweep.trial_config import trial_name
from mtl.workers import queue
from mtl.workers.lease import lease
from mtl.workers.queue import Taken
from mtl.workers.worker import FullDisk


@dataclass(frozen=True)
class Outcome:
    """The result of a trial."""

    value: float
    """The sweep's metric at the epoch whose model is kept."""
    open_heads: Mapping[str, float] = field(default_factory=dict)
    """By mask; empty without masks."""


Look = Callable[[int, float], bool]
"""Takes the number of an evaluation, from 1, and its metric; returns whether the trial must stop."""
Perform = Callable[[int, Mapping[str, Any], Look], Outcome]
"""Runs the trial of this number with these values, or resumes it if it was started."""


@dataclass(frozen=True)
class Engine:
    """A sweep in its folder, and the function that performs a trial."""

    folder: SweepFolder
    sweep: Sweep
    perform: Perform
    limit: int
    """Maximum number of trials, over all processes and all calls of the command."""

    def work(self) -> None:
        """Run trials until none is left to start or resume.

        Raises `KeyboardInterrupt` if a trial was interrupted (its state is saved) and `FullDisk`.
        """
        try:
            queue.work(self.folder, self.take)
        except Exception as error:
            if full_disk(error, self.folder.path) is not None:  # the storage may notice it first
                raise FullDisk from error
            raise

    @cached_property
    def study(self) -> optuna.Study:
        """Optuna's study."""
        study = self.folder.study(self.sweep)
        study.pruner = pruner_for(self.sweep)
        return study

    def take(self, leases: ExitStack) -> Taken[Progress] | None:
        """A trial that was started before, or else a new one."""
        with self.folder.locked():
            trial = self._started_before(leases) or self._new(leases)
        if trial is None:
            return None
        values = {parameter.key: parameter.draw(trial) for parameter in self.sweep.parameters}
        trial.set_user_attr("values", values)
        name, before = trial_name(trial.number), progress_of(self._frozen(trial))
        return Taken(name, before, partial(self._perform, trial, values), partial(self._write, trial))

    def _write(self, trial: Trial, progress: Progress) -> None:
        with self.folder.locked():
            write_progress(self.study, self._frozen(trial), progress)
            if progress.state == "finished":
                self.study.tell(trial.number, progress.value)
            elif progress.state == "stopped":
                self.study.tell(trial.number, state=TrialState.PRUNED)

    def _frozen(self, trial: Trial) -> FrozenTrial:
        return trials_of(self.study)[trial.number]

    def _started_before(self, leases: ExitStack) -> Trial | None:
        """A trial that was started and that no process works on, under a lease."""
        for frozen in trials_of(self.study):
            at_work = frozen.state == TrialState.RUNNING and not progress_of(frozen).error
            if at_work and leases.enter_context(lease(self.folder.lease_file(trial_name(frozen.number)))):
                self.study.sampler = sampler_for(self.sweep, frozen.number)
                return Trial(self.study, frozen._trial_id)
        return None

    def _new(self, leases: ExitStack) -> Trial | None:
        """A new trial, under a lease, unless there are enough or one is good enough."""
        trials = trials_of(self.study)
        started = [trial for trial in trials if trial.state != TrialState.WAITING]
        good_enough = any(
            is_scored(trial) and self.sweep.metric.reached(trial.values[0]) for trial in started
        )
        if len(started) >= self.limit or good_enough:
            return None
        if self.sweep.file.method == "grid" and len(started) == len(trials):
            # Trials are enqueued one at a time, so that trial n has point n of the grid.
            self.study.enqueue_trial(drawn_at(self.sweep, len(trials)))
        self.study.sampler = sampler_for(self.sweep, len(started))
        trial = self.study.ask()
        leases.enter_context(lease(self.folder.lease_file(trial_name(trial.number))))
        return trial

    def _perform(
        self, trial: Trial, values: Mapping[str, Any], progress: Progress, record: Callable[[Progress], None]
    ) -> Progress:
        """Do a trial; stop it early if others were better."""
        stopping, reported = self.sweep.file.early_terminate, self._frozen(trial).intermediate_values

        def look(evaluation: int, value: float) -> bool:
            """Report an evaluation to Optuna, unless an earlier try did; returns whether the trial stops."""
            nonlocal progress
            self._require_finite(value)
            if evaluation not in reported:
                trial.report(value, evaluation)
            compared = stopping is not None and evaluation <= stopping.last
            if compared and not progress.stopped and trial.should_prune():
                progress = replace(progress, stopped=evaluation)
                record(progress)
            return bool(progress.stopped)

        outcome = self.perform(trial.number, values, look)
        self._require_finite(outcome.value)
        trial.set_user_attr("open_heads", dict(outcome.open_heads))
        return replace(progress, state="stopped" if progress.stopped else "finished", value=outcome.value)

    def _require_finite(self, value: float) -> None:
        """Raise `InputError`, so that the trial fails, for a score that cannot be compared with others."""
        if not math.isfinite(value):
            raise InputError(f"{self.sweep.metric.name} is {value}, not a finite number")


def point(sweep: Sweep, number: int) -> dict[str, int]:
    """The position of each parameter's value in the grid's trial of this number; the last changes fastest."""
    positions = {}
    for parameter in reversed(sweep.parameters):
        number, positions[parameter.key] = divmod(number, parameter.size or 1)
    return {parameter.key: positions[parameter.key] for parameter in sweep.parameters}


def drawn_at(sweep: Sweep, number: int) -> dict[str, int]:
    """What Optuna draws for the grid's trial of this number: positions or integers (`Parameter.draw`)."""
    positions = point(sweep, number)
    return {
        parameter.key: positions[parameter.key]
        if parameter.scale == "categories"
        else parameter.at(positions[parameter.key])
        for parameter in sweep.parameters
    }


def sampler_for(sweep: Sweep, number: int) -> optuna.samplers.BaseSampler:
    """The sampler for the trial of this number, which is its seed: no two processes draw the same."""
    seed = zlib.crc32(f"{sweep.name}/{number}".encode())
    if sweep.file.method == "bayes":
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def pruner_for(sweep: Sweep) -> optuna.pruners.BasePruner:
    """The pruner that stops trials early.

    Optuna's `HyperbandPruner` would spread the trials over brackets with ever later first comparisons. W&B's
    hyperband puts all trials into the first bracket.
    """
    stopping = sweep.file.early_terminate
    if stopping is None:
        return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=stopping.first, reduction_factor=stopping.eta)
