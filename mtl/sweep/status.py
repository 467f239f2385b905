"""The preview of a sweep, and its trials as a table."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from rich.table import Table
from rich.text import Text

from mtl.errors import counted
from mtl.sweep.engine import point
from mtl.sweep.file import Sweep
from mtl.sweep.folder import State, SweepFolder, progress_of, trials_of, usable
from mtl.sweep.trial_config import trial_name
from mtl.workers.lease import now
from mtl.workers.pool import STATE_STYLES, clock

MOST_POINTS = 1000
"""Most points of a grid that are printed."""


def overview(folder: SweepFolder, sweep: Sweep, study: optuna.Study) -> Table:
    """A row per trial, with the values in which trials differ."""
    table = Table(title=str(folder.path), title_justify="left")
    table.add_column("trial")
    table.add_column("state")
    table.add_column(sweep.metric.name, justify="right")
    trials = trials_of(study)
    masks = list(dict.fromkeys(mask for trial in trials for mask in trial.user_attrs.get("open_heads", {})))
    for mask in masks:
        table.add_column("open heads" if mask == "shared" else f"open heads {mask}", justify="right")
    table.add_column("time", justify="right")
    varied = [parameter.key for parameter in sweep.parameters if parameter.varies]
    for key in varied:
        table.add_column(key, justify="right")
    table.add_column("remarks", overflow="fold")
    best = best_of(sweep, trials)
    for trial in trials:
        state, progress = folder.state(trial), progress_of(trial)
        spent = progress.seconds + (now() - progress.started if state == "running" else 0.0)
        values, heads = values_of(trial), trial.user_attrs.get("open_heads", {})
        table.add_row(
            trial_name(trial.number),
            Text(state, style=STATE_STYLES[state]),
            score_text(trial),
            *(f"{heads[mask]:.0f}" if mask in heads else "" for mask in masks),
            clock(spent) if spent else "",
            *(value_text(values[key]) if key in values else "" for key in varied),
            "best" if best is not None and trial.number == best.number else _remark(folder, trial, state),
        )
    return table


def totals(folder: SweepFolder, study: optuna.Study, limit: int) -> str:
    """One line: the number of trials in each state, and of those to come up to `limit`."""
    states: Counter[str] = Counter(folder.state(trial) for trial in trials_of(study))
    started = sum(states.values()) - states["waiting"]
    parts = [f"{states[state]} {state}" for state in STATE_STYLES if states[state] and state != "waiting"]
    if limit > started:
        parts.append(f"{limit - started} to come")
    return f"{counted(max(limit, started), 'trial')}: {', '.join(parts)}"


def ended_line(folder: SweepFolder, sweep: Sweep, trial: FrozenTrial, state: State) -> str:
    """The line to print when a trial's state changes."""
    name = f"{trial_name(trial.number)}: {state}"
    if state == "failed":
        return f"{name}: {progress_of(trial).error} ({folder.log(trial.number)})"
    if state in ("finished", "stopped"):
        score = f"{sweep.metric.name} {score_text(trial)}{heads_text(trial)}"
        return f"{name}: {score} with {values_text(sweep, trial)}"
    return f"{name} with {values_text(sweep, trial)}" if state == "running" else name


def is_scored(trial: FrozenTrial) -> bool:
    """Whether a trial has finished with a score that can be compared with others."""
    return trial.state == TrialState.COMPLETE and math.isfinite(trial.values[0])


def best_of(sweep: Sweep, trials: list[FrozenTrial]) -> FrozenTrial | None:
    """The finished trial with the best score; the first of equals."""
    best = None
    for trial in trials:
        if is_scored(trial) and (best is None or sweep.metric.better(trial.values[0], best.values[0])):
            best = trial
    return best


def values_of(trial: FrozenTrial) -> dict[str, Any]:
    """The configuration's values of a trial."""
    values: dict[str, Any] = trial.user_attrs.get("values", {})
    return values


def values_text(sweep: Sweep, trial: FrozenTrial) -> str:
    """The values of a trial that differ between trials."""
    values = values_of(trial)
    varied = [parameter.key for parameter in sweep.parameters if parameter.varies and parameter.key in values]
    return ", ".join(f"{key}={value_text(values[key])}" for key in varied) or "nothing different"


def value_text(value: Any) -> str:
    """A value in few characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "+".join(map(value_text, value))
    if isinstance(value, Mapping):
        return " ".join(f"{key}={value_text(item)}" for key, item in value.items())
    return "null" if value is None else str(value)


def score_text(trial: FrozenTrial) -> str:
    """A trial's score, or that of its last evaluation so far."""
    if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and trial.values:
        return f"{trial.values[0]:.4g}"
    last = trial.last_step
    return "" if last is None else f"{trial.intermediate_values[last]:.4g}"


def heads_text(trial: FrozenTrial) -> str:
    """The number of open heads of a trial's masks, as text."""
    heads = trial.user_attrs.get("open_heads", {})
    counts = ", ".join(
        f"{count:.0f}" if mask == "shared" else f"{mask} {count:.0f}" for mask, count in heads.items()
    )
    return f", open heads {counts}" if heads else ""


def _remark(folder: SweepFolder, trial: FrozenTrial, state: State) -> str:
    progress = progress_of(trial)
    if state == "failed":
        return f"{progress.error} ({folder.log(trial.number)})"
    if state == "stopped":
        return f"after evaluation {progress.stopped}"
    return progress.worker if state == "running" else ""


def preview(sweep: Sweep, folder: SweepFolder, limit: int | None) -> Iterator[str]:
    """The lines of a dry run: the shared arguments, a grid's points or the distributions, the folder.

    `limit` is the most trials; `None`: as many as a grid has.
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
        yield f"trials: {count}" + (f" of the grid's {points} points" if count < points else "")
        for number in itertools.islice(range(count), MOST_POINTS):
            positions = point(sweep, number)
            values = (
                f"{parameter.key}={_exact(parameter.at(positions[parameter.key]))}"
                for parameter in sweep.parameters
            )
            yield f"  {trial_name(number)}: {', '.join(values)}"
        if count > MOST_POINTS:
            yield f"  … and {count - MOST_POINTS} more"
    yield f"with --local in {folder.path}: {_so_far(folder, min(filter(None, (points, limit)), default=0))}"


def _exact(value: Any) -> str:
    return repr(value) if isinstance(value, float) else value_text(value)


def _so_far(folder: SweepFolder, limit: int) -> str:
    if not folder.plan.exists():
        folder.check_no_trials()
        return "not started"
    sweep, _, _ = folder.read_plan()
    with usable(folder.storage):
        return totals(folder, folder.study(sweep), limit)
