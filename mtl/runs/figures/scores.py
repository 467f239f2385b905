"""Figures of scores and times against the heads that are kept."""

from __future__ import annotations

from mtl.config.instances import named_scores
from mtl.config.schema import TrainConfig
from mtl.probes.figures.heads_kept import heads_kept
from mtl.probes.figures.pruning_curves import (
    kind_curves,
    mean_curves,
    pruning_curves,
    role_curves,
    time_curves,
)
from mtl.runs.compare.curves import curves_of, kind_survival_of, role_survival_of, times_of
from mtl.runs.compare.heads_kept import heads_kept_of
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables


def against_open_heads(request: FigureRequest) -> FigureWithTables:
    """The score of each run against the heads that its masks keep open."""
    runs, left_out = request.runs()
    score = {**named_scores(run.config() for run in runs), **TrainConfig().main_scores()}
    kept, notes = heads_kept_of(runs, request.split, score, request.tasks)
    notes = (*left_out, *notes)
    return FigureWithTables(heads_kept(kept.table, kept.heads, score), notes, {"": kept.table})


def curve(request: FigureRequest) -> FigureWithTables:
    """Pruning curves: scores against heads kept."""
    points, notes = curves_of(request.paths, request.tasks, request.split)
    figures = dict(points.select("task", "figure").unique(maintain_order=True).iter_rows())
    means = mean_curves(points, "score", ("task", "by", "trained_epochs"))
    return FigureWithTables(pruning_curves(points, figures), notes, {"": means})


def roles(request: FigureRequest) -> FigureWithTables:
    """Heads with a role that survive along pruning curves."""
    survival, notes = role_survival_of(request.paths, request.tasks, request.split)
    means = mean_curves(survival, "surviving", ("by", "role"))
    return FigureWithTables(role_curves(survival), notes, {"": means})


def kinds(request: FigureRequest) -> FigureWithTables:
    """Heads of each kind of attention that are kept along pruning curves."""
    survival, notes = kind_survival_of(request.paths, request.tasks, request.split)
    means = mean_curves(survival, "surviving", ("by", "attention"))
    return FigureWithTables(kind_curves(survival), notes, {"": means})


def times(request: FigureRequest) -> FigureWithTables:
    """Time per sentence of cut models along pruning curves."""
    table, notes = times_of(request.paths, request.tasks)
    return FigureWithTables(time_curves(table), notes, {"": table})
