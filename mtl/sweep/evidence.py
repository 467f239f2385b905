"""A sweep's folder read into what its report shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from mtl.sweep.file import Sweep
from mtl.sweep.folder import SweepFolder, progress_of, trials_of
from mtl.sweep.parameter import Parameter
from mtl.sweep.status import best_of, value_text, values_of
from mtl.sweep.trial_config import trial_name
from probes.figures.parallel_coordinates import Axis
from probes.report.sweep import SweepEvidence, TrialRow


def sweep_evidence(path: Path) -> SweepEvidence | None:
    """What a folder's sweep has come to; `None` if it holds none, or none of its trials has begun."""
    folder = SweepFolder(path)
    if not folder.plan.is_file():
        return None
    sweep, _, _ = folder.kept()
    trials = [each for each in trials_of(folder.study(sweep)) if values_of(each)]
    if not trials:
        return None
    best = best_of(sweep, trials)
    return SweepEvidence(
        method=sweep.method,
        metric=sweep.metric.name,
        goal=sweep.metric.goal,
        trials=tuple(_row(folder, each) for each in trials),
        axes=(*_axes(sweep, trials), *_heads(trials)),
        best=None if best is None else trial_name(best.number),
    )


def _row(folder: SweepFolder, trial: FrozenTrial) -> TrialRow:
    state = folder.state(trial)
    scored = trial.values[0] if trial.values else None
    return TrialRow(trial_name(trial.number), state, scored, progress_of(trial).seconds)


def _axes(sweep: Sweep, trials: Sequence[FrozenTrial]) -> list[Axis]:
    axes = []
    for parameter in sweep.parameters:
        values = [values_of(trial).get(parameter.key) for trial in trials]
        if len(parameter.examples()) > 1:
            axes.append(_axis(parameter, values))
    return axes


def _axis(parameter: Parameter, values: Sequence[Any]) -> Axis:
    listed = parameter.scale == "categories"
    if listed and not all(_is_number(value) for value in parameter.examples()):
        order = tuple(map(value_text, parameter.examples()))
        return Axis(parameter.key, "categories", tuple(map(value_text, values)), order)
    if listed:  # numbers at even distances, in their order
        order = tuple(map(value_text, sorted(parameter.examples())))
        return Axis(parameter.key, "categories", tuple(map(value_text, values)), order)
    return Axis(parameter.key, parameter.scale, tuple(float(value) for value in values))


def _heads(trials: Sequence[FrozenTrial]) -> list[Axis]:
    """How many heads every mask leaves open, where there are masks."""
    heads = [trial.user_attrs.get("open_heads", {}) for trial in trials]
    masks = dict.fromkeys(mask for each in heads for mask in each)
    return [
        Axis(
            "open heads" if mask == "shared" else f"open heads {mask}",
            "linear",
            tuple(each.get(mask) for each in heads),
        )
        for mask in masks
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
