"""One process's share of a sweep: a trial that nobody works on is taken up, or a new one asked for."""

from __future__ import annotations

import math
import time
import traceback
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from mtl.errors import InputError
from mtl.sweep.file import Sweep
from mtl.sweep.folder import Progress, SweepFolder, progress_of, trials_of, write_progress
from mtl.sweep.parameter import Parameter
from mtl.workers.lease import Holder, lease
from mtl.workers.pool import TRIES, FullDisk, disk_is_full


@dataclass(frozen=True)
class Outcome:
    """What a trial has come to."""

    value: float
    """The sweep's metric at the epoch whose model is kept."""
    epoch: int = 0
    open_heads: Mapping[str, float] = field(default_factory=dict)
    """By mask; empty without masks."""


Look = Callable[[int, float], bool]
"""Takes the number of an evaluation, from 1, and the metric there; true: the trial is to stop."""
Perform = Callable[[int, Mapping[str, Any], Look], Outcome]
"""Carries out the trial of this number with these values; goes on with one that was begun."""


@dataclass(frozen=True)
class Engine:
    """A sweep in its folder, and how a trial of it is performed."""

    folder: SweepFolder
    sweep: Sweep
    perform: Perform
    limit: int
    """Trials at most, over all processes and all times that the sweep was taken up."""

    def work(self) -> None:
        """Do trials until none is left that could be begun.

        Raises `KeyboardInterrupt` if a trial was interrupted (its state is saved) and `FullDisk`.
        """
        study = self.folder.study(self.sweep)
        study.pruner = pruner_for(self.sweep)
        try:
            while self._next(study):
                pass
        except Exception as error:
            if disk_is_full(error, self.folder.path):  # which the storage, too, may be the first to notice
                raise FullDisk from error
            raise

    def _next(self, study: optuna.Study) -> bool:
        """Do one trial, unless none is left."""
        with ExitStack() as held:
            trial = self._take(study, held)
            if trial is not None:
                self._carry_out(study, trial)
            return trial is not None

    def _take(self, study: optuna.Study, held: ExitStack) -> Trial | None:
        """A trial whose lease is now held."""
        with self.folder.locked():
            trials = trials_of(study)
            for known in trials:
                if known.state != TrialState.RUNNING or progress_of(known).error:
                    continue
                if held.enter_context(lease(self.folder.lease_file(known.number))):
                    study.sampler = sampler_for(self.sweep, known.number)
                    return Trial(study, known._trial_id)
            begun = [each for each in trials if each.state != TrialState.WAITING]
            good_enough = any(
                each.state == TrialState.COMPLETE and self.sweep.metric.reached(each.values[0])
                for each in begun
            )
            if len(begun) >= self.limit or good_enough:
                return None
            if self.sweep.method == "grid" and len(begun) == len(trials):
                # Trials are made one at a time, so that the trial of a number has the point of that number.
                study.enqueue_trial(point(self.sweep, len(trials)))
            study.sampler = sampler_for(self.sweep, len(begun))
            trial = study.ask()
            held.enter_context(lease(self.folder.lease_file(trial.number)))
            return trial

    def _carry_out(self, study: optuna.Study, trial: Trial) -> None:
        known = trials_of(study)[trial.number]
        before = progress_of(known)
        begun = replace(before, tries=before.tries + 1, started=time.time(), worker=str(Holder.me()))
        if begun.tries > TRIES:
            error = f"its process died {TRIES} times; the end of its log may say why"
            self._end(study, known, replace(before, error=error))
            return
        values = {each.key: each.value(_draw(trial, each)) for each in self.sweep.parameters}
        trial.set_user_attr("values", values)
        write_progress(study, known, begun)
        watcher = _Watcher(study, self.sweep, trial, known, begun)
        try:
            outcome = self.perform(trial.number, values, watcher)
            if math.isnan(outcome.value):
                raise InputError(f"{self.sweep.metric.name} is not a number")
        except KeyboardInterrupt:
            # Asked to stop: that was not the trial's fault.
            self._end(study, known, replace(watcher.progress, tries=before.tries))
            raise
        except Exception as error:  # whatever it is, the other trials go on
            if disk_is_full(error, self.folder.path):
                raise FullDisk from error
            self._end(study, known, replace(watcher.progress, error=self._log(trial.number, error)))
            return
        trial.set_user_attr("open_heads", dict(outcome.open_heads))
        self._end(study, known, replace(watcher.progress, epoch=outcome.epoch), outcome.value)

    def _end(
        self, study: optuna.Study, known: FrozenTrial, progress: Progress, value: float | None = None
    ) -> None:
        """Keep how a try ended, and with a value also the trial."""
        spent = time.time() - progress.started if progress.started else 0.0
        with self.folder.locked():
            write_progress(study, known, replace(progress, started=0.0, seconds=progress.seconds + spent))
            if value is None:
                return
            if progress.stopped:
                study.tell(known.number, state=TrialState.PRUNED)
            else:
                study.tell(known.number, value)

    def _log(self, number: int, error: Exception) -> str:
        log = self.folder.log(number)
        log.parent.mkdir(parents=True, exist_ok=True)
        said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        with log.open("a", encoding="utf-8") as file:
            if isinstance(error, InputError):
                file.write(f"mtl: {error}\n")
            else:
                traceback.print_exception(error, file=file)
        return " ".join(said.split())


class _Watcher:
    """Tells Optuna of a trial's evaluations and asks whether to go on."""

    def __init__(
        self, study: optuna.Study, sweep: Sweep, trial: Trial, known: FrozenTrial, progress: Progress
    ) -> None:
        self.study, self.trial, self.known, self.progress = study, trial, known, progress
        self.stopping = sweep.stopping
        self._reported = set(known.intermediate_values)

    def __call__(self, evaluation: int, value: float) -> bool:
        """Whether the trial is to stop."""
        if evaluation not in self._reported:
            self._reported.add(evaluation)
            self.trial.report(value, evaluation)
        compared = self.stopping is not None and self.stopping.compares_after(evaluation)
        if compared and not self.progress.stopped and self.trial.should_prune():
            self.progress = replace(self.progress, stopped=evaluation)
            write_progress(self.study, self.known, self.progress)
        return bool(self.progress.stopped)


def point(sweep: Sweep, number: int) -> dict[str, Any]:
    """What the grid's trial of this number draws; the last parameter changes fastest."""
    drawn: dict[str, Any] = {}
    for each in reversed(sweep.parameters):
        points = each.points() or ()
        number, place = divmod(number, len(points))
        drawn[each.key] = points[place]
    return {each.key: drawn[each.key] for each in sweep.parameters}


def sampler_for(sweep: Sweep, number: int) -> optuna.samplers.BaseSampler:
    """What draws the trial of this number: seeded by it, so that no two processes draw alike."""
    seed = zlib.crc32(f"{sweep.name}/{number}".encode())
    if sweep.method == "bayes":
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def pruner_for(sweep: Sweep) -> optuna.pruners.BasePruner:
    """What stops trials early.

    Optuna's `HyperbandPruner` would spread trials over brackets that begin later and later; W&B's hyperband
    is the first of them, for all trials.
    """
    if sweep.stopping is None:
        return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(
        min_resource=sweep.stopping.first, reduction_factor=sweep.stopping.eta
    )


def _draw(trial: Trial, parameter: Parameter) -> Any:
    """What is drawn for a parameter; the same again for a trial that goes on."""
    of = parameter.drawn_from()
    if isinstance(of, CategoricalDistribution):
        return trial.suggest_categorical(parameter.key, of.choices)
    if isinstance(of, IntDistribution):
        return trial.suggest_int(parameter.key, of.low, of.high)
    assert isinstance(of, FloatDistribution)
    return trial.suggest_float(parameter.key, of.low, of.high, log=of.log)
