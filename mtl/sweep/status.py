"""The preview of a sweep, and its trials as a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import optuna
from optuna.trial import FrozenTrial, TrialState

from mtl.sweep.file import Sweep
from mtl.sweep.folder import SweepFolder, TrialProgress, is_scored, point, trials_of, usable
from mtl.sweep.trial_config import trial_name
from mtl.tasks.in_words import as_text, counted
from mtl.workers.queue import Snapshot
from mtl.workers.watch import QueueView

MOST_POINTS = 1000
"""Maximum number of points of a grid that are printed."""
Trials = Snapshot[FrozenTrial, TrialProgress]


@dataclass(frozen=True)
class SweepView(QueueView[Trials]):
    """What users see of a sweep: the trials whose values are drawn."""

    folder: SweepFolder
    sweep: Sweep
    study: optuna.Study
    limit: int
    """The final number of trials; 0: unknown."""
    kind: ClassVar[str] = "trial"

    def snapshot(self) -> Trials:
        """The trials and their progress now."""
        trials = {trial_name(trial.number): trial for trial in trials_of(self.study) if trial_values(trial)}
        return Snapshot(trials, {name: self.folder.progress(trial) for name, trial in trials.items()})

    def texts(self, snapshot: Trials, name: str) -> dict[str, str]:
        """The metric, the parameters in which trials differ, and the open heads of every mask."""
        trial = snapshot.jobs[name]
        return {self.sweep.metric.name: score_text(trial)} | self._varied(trial) | _heads_text(trial)

    def remark(self, snapshot: Trials, name: str) -> str:
        """Whether the trial is the best one, or when it was stopped."""
        best = best_of(self.sweep, list(snapshot.jobs.values()))
        if best is not None and name == trial_name(best.number):
            return "best"
        stopped = snapshot.state(name) == "stopped"
        evaluation = snapshot.progress[name].stopped
        return f"after evaluation {evaluation}" if stopped else super().remark(snapshot, name)

    def ending(self, snapshot: Trials, name: str) -> str:
        """The trial's values, and its score if it has ended."""
        trial = snapshot.jobs[name]
        described = ", ".join(f"{key}={text}" for key, text in self._varied(trial).items())
        ended = snapshot.state(name) in ("finished", "stopped")
        results = {self.sweep.metric.name: score_text(trial)} | _heads_text(trial) if ended else {}
        score = ", ".join(f"{key} {text}" for key, text in results.items())
        return f"{': ' if ended else ''}{score} with {described or 'nothing different'}"

    def _varied(self, trial: FrozenTrial) -> dict[str, str]:
        values = trial_values(trial)
        varied = [parameter.key for parameter in self.sweep.parameters if parameter.varies]
        return {key: setting_text(values[key]) for key in varied if key in values}


def best_of(sweep: Sweep, trials: list[FrozenTrial]) -> FrozenTrial | None:
    """The finished trial with the best score; the first of equals."""
    best = max if sweep.metric.goal == "maximize" else min
    scored = [trial for trial in trials if is_scored(trial)]
    return best(scored, key=lambda trial: trial.values[0], default=None)


def trial_values(trial: FrozenTrial) -> dict[str, Any]:
    """The configuration's values of a trial."""
    values: dict[str, Any] = trial.user_attrs.get("values", {})
    return values


def trial_open_heads(trial: FrozenTrial) -> dict[str, float]:
    """The number of open heads of each of a trial's masks, by its name in tables."""
    heads: dict[str, float] = trial.user_attrs.get("open_heads", {})
    names = {mask: "open heads" if mask == "shared" else f"open heads {mask}" for mask in heads}
    return {names[mask]: count for mask, count in heads.items()}


def _heads_text(trial: FrozenTrial) -> dict[str, str]:
    return {name: f"{count:.0f}" for name, count in trial_open_heads(trial).items()}


def setting_text(value: Any) -> str:
    """A short form of a value, with numbers rounded to four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "+".join(map(setting_text, value))
    if isinstance(value, Mapping):
        return " ".join(f"{key}={setting_text(item)}" for key, item in value.items())
    return "null" if value is None else str(value)


def score_text(trial: FrozenTrial) -> str:
    """A trial's score; before it has ended, that of its last evaluation."""
    if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and trial.values:
        return f"{trial.values[0]:.4g}"
    last = trial.last_step
    return "" if last is None else f"{trial.intermediate_values[last]:.4g}"


def preview(sweep: Sweep, folder: SweepFolder, limit: int | None) -> Iterator[str]:
    """The lines of a dry run: the shared arguments, a grid's points or the distributions, the folder.

    `limit` is the maximum number of trials; `None`: all of a grid.
    """
    target = "" if sweep.metric.target is None else f", until {sweep.metric.target:g}"
    yield f"sweep {sweep.name}: {sweep.file.method}, to {sweep.metric.goal} {sweep.metric.name}{target}"
    yield f"all trials share: mtl train {' '.join(sweep.base)}".rstrip()
    yield f"early termination: {sweep.file.early_terminate or 'none'}"
    points = sweep.points()
    if points is None:
        yield f"trials: {limit or 'no limit; with --local, give run_cap or --trials=N'}"
        for parameter in sweep.parameters:
            yield f"  {parameter}"
    else:
        count = min(points, limit or points)
        yield f"trials: {count}" + (f" of the grid's {counted(points, 'point')}" if count < points else "")
        for number in itertools.islice(range(count), MOST_POINTS):
            positions = point(sweep, number)
            values = {each.key: each.at(positions[each.key]) for each in sweep.parameters}
            shown = ", ".join(f"{key}={as_text(value)}" for key, value in values.items())
            yield f"  {trial_name(number)}: {shown}"
        if count > MOST_POINTS:
            yield f"  … and {count - MOST_POINTS} more"
    yield f"with --local in {folder.path}: {_so_far(folder, min(filter(None, (points, limit)), default=0))}"


def _so_far(folder: SweepFolder, limit: int) -> str:
    if not folder.sweep_file.exists():
        folder.check_no_trials()
        return "not started"
    sweep, _, _ = folder.read_sweep()
    with usable(folder.storage):
        view = SweepView(folder, sweep, folder.study(sweep), limit)
        return view.totals(view.snapshot())
