"""Figures of what heads are worth: maps of a measure, how measures predict ablation, and their agreement."""

from __future__ import annotations

from mtl.errors import InputError
from mtl.probes.figures.correlation import correlation_matrix
from mtl.probes.figures.head_maps import head_maps
from mtl.probes.figures.prediction import prediction_dots
from mtl.probes.measures.table import BY_NAME
from mtl.probes.statistics.agreement import agreement
from mtl.probes.statistics.head_values import ABLATION, head_means
from mtl.probes.statistics.prediction import prediction
from mtl.runs.compare.worth import check_measure, with_groups, worth_of
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables


def maps(request: FigureRequest) -> FigureWithTables:
    """A measure per head, task and setup."""
    measure = request.measure
    values, notes = worth_of(request.paths, request.tasks)
    notes = (*notes, *check_measure(measure, values))
    means = head_means(with_groups(values), measure)
    points = measure in BY_NAME and BY_NAME[measure].unit == "points"
    axis = f"{measure}, points" if points else measure
    return FigureWithTables(head_maps(means, measure, axis), notes, {"": means})


def predictions(request: FigureRequest) -> FigureWithTables:
    """How well each measure predicts ablation."""
    values, notes = worth_of(request.paths, request.tasks)
    notes = (*notes, *check_measure(ABLATION, values))
    table = prediction(values)
    if table.is_empty():
        raise InputError("no run has a measure beside its ablation: 'mtl importance RUN' makes one")
    return FigureWithTables(prediction_dots(table), notes, {"": table})


def agreements(request: FigureRequest) -> FigureWithTables:
    """The correlation of one measure between seeds, tasks and tables."""
    values, notes = worth_of(request.paths, request.tasks)
    notes = (*notes, *check_measure(request.measure, values))
    table = agreement(with_groups(values), request.measure)
    if table.is_empty():
        raise InputError("there is one table only: give runs of several seeds or tasks, or several tables")
    return FigureWithTables(correlation_matrix(table, "spearman"), notes, {"": table})
