"""Figures of pruning curves, from folders of runs."""

from __future__ import annotations

import polars as pl

from mtl.curves.runs import curves_of, epoch_curves_of, kind_survival_of, role_survival_of, times_of
from mtl.probes.curves.curve_table import UNITS
from mtl.probes.curves.figures import kind_curves, mean_curves, pruning_curves, role_curves, time_curves
from mtl.probes.tables.table_files import ColumnUnit
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables

_OF_SCORES = {"": ColumnUnit.PERCENT.of("percent", "score", "spread")}
_OF_HEADS = {"": ColumnUnit.PERCENT.of("percent") | ColumnUnit.SHARE.of("surviving", "spread")}


def draw_curves(request: FigureRequest) -> FigureWithTables:
    """Pruning curves: scores against heads kept."""
    points, notes = curves_of(request.paths, request.tasks, request.split)
    figures = dict(points.select("task", "figure").unique(maintain_order=True).iter_rows())
    means = mean_curves(points, "score", ("task", "by", "trained_epochs"))
    return FigureWithTables(pruning_curves(points, figures), notes, {"": means}, units=_OF_SCORES)


def draw_curve_epochs(request: FigureRequest) -> FigureWithTables:
    """Pruning curves after epochs of the training, a line for each."""
    points, notes = epoch_curves_of(request.paths, request.tasks, request.split)
    figures = dict(points.select("task", "figure").unique(maintain_order=True).iter_rows())
    lines = points.with_columns(by=pl.format("{}, epoch {}", "by", "epoch"))
    means = mean_curves(points, "score", ("task", "by", "trained_epochs", "epoch"))
    figure = pruning_curves(lines, figures, known=list(lines["by"].unique(maintain_order=True)))
    return FigureWithTables(figure, notes, {"": means}, units=_OF_SCORES)


def draw_curve_roles(request: FigureRequest) -> FigureWithTables:
    """Heads with a role that survive along pruning curves."""
    survival, notes = role_survival_of(request.paths, request.tasks, request.split)
    means = mean_curves(survival, "surviving", ("by", "role"))
    return FigureWithTables(role_curves(survival), notes, {"": means}, units=_OF_HEADS)


def draw_curve_kinds(request: FigureRequest) -> FigureWithTables:
    """Heads of each kind of attention that are kept along pruning curves."""
    survival, notes = kind_survival_of(request.paths, request.tasks, request.split)
    means = mean_curves(survival, "surviving", ("by", "attention"))
    return FigureWithTables(kind_curves(survival), notes, {"": means}, units=_OF_HEADS)


def draw_curve_times(request: FigureRequest) -> FigureWithTables:
    """Time per sentence of cut models along pruning curves."""
    table, notes = times_of(request.paths, request.tasks)
    return FigureWithTables(time_curves(table), notes, {"": table}, units={"": UNITS})
