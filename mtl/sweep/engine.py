"""One process's share of a sweep: resume a free trial, or ask for a new one."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from mtl.errors import InputError
from mtl.files import full_disk
from mtl.sweep.file import Sweep
from mtl.sweep.folder import Progress, SweepFolder, progress_of, trials_of, write_progress
from mtl.workers.lease import Holder, lease, now
from mtl.workers.worker import TRIES, Failed, FullDisk, logged


@dataclass(frozen=True)
class Outcome:
    """The result of a trial."""

    value: float
    """The sweep's metric at the epoch whose model is kept."""
    open_heads: Mapping[str, float] = field(default_factory=dict)
    """By mask; empty without masks."""


Look = Callable[[int, float], bool]
"""Takes the number of an evaluation, from 1, and its metric; returns whether the trial has to stop."""
Perform = Callable[[int, Mapping[str, Any], Look], Outcome]
"""Runs the trial of this number with these values; resumes one that was started."""


@dataclass(frozen=True)
class Engine:
    """A sweep in its folder, and the function that performs a trial."""

    folder: SweepFolder
    sweep: Sweep
    perform: Perform
    limit: int
    """Most trials, over all processes and all calls of the command."""

    def work(self) -> None:
        """Run trials until none is left to start or resume.

        Raises `KeyboardInterrupt` if a trial was interrupted (its state is saved) and `FullDisk`.
        """
        study = self.folder.study(self.sweep)
        study.pruner = pruner_for(self.sweep)
        try:
            while self._next(study):
                pass
        except Exception as error:
            if full_disk(error, self.folder.path) is not None:  # the storage may notice it first
                raise FullDisk from error
            raise

    def _next(self, study: optuna.Study) -> bool:
        """Run one trial, unless none is left."""
        with ExitStack() as leases:
            trial = self._take(study, leases)
            if trial is not None:
                self._carry_out(study, trial)
            return trial is not None

    def _take(self, study: optuna.Study, leases: ExitStack) -> Trial | None:
        """A trial whose lease this process now holds, if any is left."""
        with self.folder.locked():
            trials = trials_of(study)
            for frozen in trials:
                if frozen.state != TrialState.RUNNING or progress_of(frozen).error:
                    continue
                if leases.enter_context(lease(self.folder.lease_file(frozen.number))):
                    study.sampler = sampler_for(self.sweep, frozen.number)
                    return Trial(study, frozen._trial_id)
            started = [trial for trial in trials if trial.state != TrialState.WAITING]
            good_enough = any(
                trial.state == TrialState.COMPLETE and self.sweep.metric.reached(trial.values[0])
                for trial in started
            )
            if len(started) >= self.limit or good_enough:
                return None
            if self.sweep.file.method == "grid" and len(started) == len(trials):
                # Trials are enqueued one at a time, so that trial n has point n of the grid.
                study.enqueue_trial(drawn_at(self.sweep, len(trials)))
            study.sampler = sampler_for(self.sweep, len(started))
            trial = study.ask()
            leases.enter_context(lease(self.folder.lease_file(trial.number)))
            return trial

    def _carry_out(self, study: optuna.Study, trial: Trial) -> None:
        frozen = trials_of(study)[trial.number]
        before = progress_of(frozen)
        progress = replace(before, tries=before.tries + 1, started=now(), worker=str(Holder.me()))
        if progress.tries > TRIES:
            error = f"its process died {TRIES} times; the end of its log may say why"
            self._end(study, frozen, replace(before, error=error))
            return
        values = {parameter.key: parameter.draw(trial) for parameter in self.sweep.parameters}
        trial.set_user_attr("values", values)
        write_progress(study, frozen, progress)
        stopping = self.sweep.file.early_terminate

        def look(evaluation: int, value: float) -> bool:
            """Report an evaluation to Optuna, unless an earlier try has; returns whether the trial stops."""
            nonlocal progress
            if evaluation not in frozen.intermediate_values:
                trial.report(value, evaluation)
            compared = stopping is not None and stopping.compares_after(evaluation)
            if compared and not progress.stopped and trial.should_prune():
                progress = replace(progress, stopped=evaluation)
                write_progress(study, frozen, progress)
            return bool(progress.stopped)

        def perform() -> Outcome:
            outcome = self.perform(trial.number, values, look)
            if math.isnan(outcome.value):
                raise InputError(f"{self.sweep.metric.name} is not a number")
            return outcome

        try:
            outcome = logged(self.folder.log(trial.number), perform)
        except KeyboardInterrupt:
            # The process was asked to stop: this try does not count.
            self._end(study, frozen, replace(progress, tries=before.tries))
            raise
        except Failed as failure:
            self._end(study, frozen, replace(progress, error=str(failure)))
            return
        trial.set_user_attr("open_heads", dict(outcome.open_heads))
        self._end(study, frozen, progress, outcome.value)

    def _end(
        self, study: optuna.Study, frozen: FrozenTrial, progress: Progress, value: float | None = None
    ) -> None:
        """Record the end of a try; with a value, also the end of the trial."""
        spent = now() - progress.started if progress.started else 0.0
        with self.folder.locked():
            write_progress(study, frozen, replace(progress, started=0.0, seconds=progress.seconds + spent))
            if value is not None and progress.stopped:
                study.tell(frozen.number, state=TrialState.PRUNED)
            elif value is not None:
                study.tell(frozen.number, value)


def point(sweep: Sweep, number: int) -> dict[str, int]:
    """The position of each parameter's value in the grid's trial of this number; the last changes fastest."""
    positions = {}
    for parameter in reversed(sweep.parameters):
        number, positions[parameter.key] = divmod(number, parameter.size or 1)
    return {parameter.key: positions[parameter.key] for parameter in sweep.parameters}


def drawn_at(sweep: Sweep, number: int) -> dict[str, int]:
    """What Optuna draws for the grid's trial of this number: positions, or integers (`Parameter.draw`)."""
    positions = point(sweep, number)
    return {
        parameter.key: positions[parameter.key]
        if parameter.scale == "categories"
        else parameter.at(positions[parameter.key])
        for parameter in sweep.parameters
    }


def sampler_for(sweep: Sweep, number: int) -> optuna.samplers.BaseSampler:
    """The sampler for the trial of this number, which seeds it, so that no two processes draw alike."""
    seed = zlib.crc32(f"{sweep.name}/{number}".encode())
    if sweep.file.method == "bayes":
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def pruner_for(sweep: Sweep) -> optuna.pruners.BasePruner:
    """The pruner that stops trials early.

    Optuna's `HyperbandPruner` would spread trials over brackets with later and later first comparisons. W&B's
    hyperband puts all trials into the first bracket.
    """
    stopping = sweep.file.early_terminate
    if stopping is None:
        return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=stopping.first, reduction_factor=stopping.eta)
