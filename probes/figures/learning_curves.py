"""Scores on dev in the course of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from mtl.probes.figures.looks import looks_of
from mtl.probes.figures.style import styled, task_panels
from mtl.probes.task_order import tasks_in


@styled
def learning_curves(history: pl.DataFrame, metrics: Mapping[str, str], among: Sequence[str] = ()) -> Figure:
    """A panel for each task: a faint line for each run, and the mean over the runs of a setup.

    `history`: setup, task, run, update, score, with a row for each evaluation. `metrics`: the name of each
    task's score; `among`: the other setups on the page (`looks_of`). The mean is drawn at updates at which
    all runs of the setup were evaluated.
    """
    looks = looks_of(history["setup"].unique(maintain_order=True), among)
    panels = task_panels(tasks_in(history), looks, metrics)
    for task, axes in panels.by_task.items():
        of_task = history.filter(pl.col("task") == task)
        for (setup,), of_setup in of_task.group_by("setup", maintain_order=True):
            look = panels.looks[str(setup)]
            runs = of_setup.sort("update").group_by("run", maintain_order=True).agg("update", "score")
            lines = [list(zip(*line, strict=True)) for _, *line in runs.iter_rows()]
            axes.add_collection(LineCollection(lines, colors=look.colour, linewidths=0.5, alpha=0.3))
            means = of_setup.group_by("update").agg(pl.col("score").mean(), runs=pl.col("run").n_unique())
            means = means.filter(pl.col("runs") == of_setup["run"].n_unique()).sort("update")
            axes.plot(
                means["update"], means["score"], color=look.colour, linewidth=1.1, marker=look.shape,
                markersize=2.8, markeredgewidth=0.5,
            )  # fmt: skip
        axes.set_xlim(left=0)
    keys = [look.key(setup, 2.8, 1.1) for setup, look in panels.looks.items()]
    return panels.finished("update (faint: single runs; bold: means over seeds)", keys)
