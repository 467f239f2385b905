"""Scores of pairs under fixed masks against how many heads the masks have in common."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.probes.figures.looks import task_looks
from mtl.probes.figures.style import COLUMN, GRID, new_figure, styled, wrapped
from mtl.probes.signed_words import SignedWords
from mtl.probes.stem_cell.statistics.dose import ALL
from mtl.probes.task_order import tasks_in


@styled
def dose_figure(scores: pl.DataFrame, losses: pl.DataFrame) -> Figure:
    """A panel per pair: a dot per run and task (points from the task's mean), lines through means.

    The title has the points lost if all heads are in common instead of none, with interval and p. `scores` as
    `mtl.probes.stem_cell.statistics.dose` takes them, `losses` as it gives them. Raises `ValueError` without
    scores.
    """
    if scores.is_empty():
        raise ValueError("no pair with a fixed mask per task: 'pruning=fixed' with gates.masks trains some")
    pairs = list(scores["pair"].unique(maintain_order=True))
    looks = task_looks(tasks_in(scores))
    columns = 1 if len(pairs) == 1 else 2
    rows = -(-len(pairs) // columns)
    figure = new_figure(1.5 * rows + 0.7, COLUMN)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in panels.flat[len(pairs) :]:
        axes.axis("off")
    for pair, axes in zip(pairs, panels.flat, strict=False):
        of_pair = scores.filter(pl.col("pair") == pair)
        levels = sorted(set(of_pair["overlap"]))
        for task in of_pair["task"].unique(maintain_order=True):
            look = looks[task]
            rows_of_task = of_pair.filter(pl.col("task") == task)
            values = rows_of_task["score"].to_numpy() - rows_of_task["score"].to_numpy().mean()
            overlaps = rows_of_task["overlap"].to_numpy()
            axes.plot(overlaps, values, look.shape, color=look.colour, markersize=2.2, alpha=0.5)
            task_levels = np.unique(overlaps)
            means = np.array([values[overlaps == level].mean() for level in task_levels])
            axes.plot(task_levels, means, color=look.colour, linewidth=1.2)
        axes.set_title(pair)
        axes.set_xticks(levels)
        axes.grid(axis="y", color=GRID, linewidth=0.4)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("heads that both masks have", fontsize=7)
    figure.supylabel("score, points from the mean", fontsize=7)
    handles = [
        Line2D([], [], color=look.colour, marker=look.shape, markersize=3, label=look.named(task))
        for task, look in looks.items()
    ]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=min(len(looks), 5), title=wrapped(_title(losses))
    )
    return figure


LOST = SignedWords("lost", "gained", "points")


def _title(losses: pl.DataFrame) -> str:
    row = losses.row(by_predicate=pl.col("pair") == ALL, named=True)
    if row["loss"] is None:
        return "one overlap only"
    return (
        f"none to all in common: {LOST.of(row['loss'])} ({LOST.interval(row['low'], row['high'])}), "
        f"p {row['p']:.2g}"
    )
