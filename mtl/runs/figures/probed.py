"""Figures of probed runs: how well heads know the labels of a task."""

from __future__ import annotations

import polars as pl

from mtl.errors import InputError
from mtl.probes.figures.head_label_heatmap import head_label_heatmap
from mtl.probes.figures.label_accuracy import label_accuracy
from mtl.probes.statistics.skill import absent_labels, label_values, skills
from mtl.probes.tables.printed import best_heads
from mtl.probes.tables.printed import labels as printed_labels
from mtl.runs.compare.comparable import note_averages, with_setups
from mtl.runs.compare.heads import heads_of
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables
from mtl.runs.folder.run import Run


def labels(request: FigureRequest) -> FigureWithTables:
    """The best head per label and regime."""
    heads, notes = _heads_of_one_task(request)
    values = label_values(heads)
    all_notes = (*notes, *absent_labels(values))
    return FigureWithTables(label_accuracy(values), all_notes, {"": values}, {"": printed_labels(values)})


def heatmap(request: FigureRequest) -> FigureWithTables:
    """Heads by labels, of runs of one regime."""
    heads, notes = _heads_of_one_task(request)
    regimes = sorted(set(heads["regime"]))
    if len(regimes) > 1:
        raise InputError(f"a heat map shows runs of one regime, and these are of {', '.join(regimes)}")
    values = skills(heads)
    return FigureWithTables(head_label_heatmap(values), notes, {"": values}, {"": best_heads(values)})


def _heads_of_one_task(request: FigureRequest) -> tuple[pl.DataFrame, tuple[str, ...]]:
    heads, notes = heads_of(request.paths, request.tasks)
    tasks = [task for task in heads["task"].unique(maintain_order=True) if task]
    if len(tasks) > 1:
        raise InputError(
            f"this figure shows one task: choose with --tasks=[{tasks[0]}] (or {', '.join(tasks[1:])})"
        )
    used = set(heads["run"].unique())
    runs = [Run(path) for path in request.paths if str(path) in used and (path / "config.yaml").exists()]
    averages: list[str] = []
    note_averages(with_setups(runs), heads, averages)
    return heads, (*notes, *averages)
