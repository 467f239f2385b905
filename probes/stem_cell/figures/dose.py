"""Scores of pairs under fixed masks against how many heads the masks have in common."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from mtl.probes.figures.looks import task_looks
from mtl.probes.figures.style import open_frame, panel_figure, styled, wrapped
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
    figure, panels = panel_figure(len(pairs), 1.5, 0.7, sharey=True)
    for pair, axes in zip(pairs, panels, strict=True):
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
        open_frame(axes)
    figure.supxlabel("heads that both masks have", fontsize=7)
    figure.supylabel("score, points from the mean", fontsize=7)
    handles = [look.key(task, 3.0, 1.5) for task, look in looks.items()]
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
