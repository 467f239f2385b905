"""Scores against the number of heads kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtl.probes.figures.looks import looks_of
from mtl.probes.figures.style import Look, styled, task_panels
from mtl.probes.task_order import tasks_in


@styled
def heads_kept(
    runs: pl.DataFrame, heads: int, metrics: Mapping[str, str], among: Sequence[str] = ()
) -> Figure:
    """A panel for each task: a faint point for each run, and per setting the mean over seeds with its spread.

    `runs`: task, setup, setting (penalty or target; null if the runs of a setup are no series), kept, score.
    `heads`: how many the encoder has. `metrics`: the name of each task's score. `among`: the other setups on
    the page (`looks_of`). A setup has a colour and a marker of its own. Lines join only settings of the same
    setup, since runs that were trained differently differ in more than the number of heads. Bars are standard
    deviations over seeds (n - 1) of both numbers.
    """
    looks = looks_of(runs["setup"].unique(maintain_order=True), among)
    panels = task_panels(tasks_in(runs), looks, metrics)
    for task, axes in panels.by_task.items():
        for (setup,), of_setup in runs.filter(pl.col("task") == task).group_by("setup", maintain_order=True):
            _draw(axes, of_setup, panels.looks[str(setup)])
        axes.set_xlim(-0.05 * heads, 1.05 * heads)
    keys = [look.key(setup, 4.0, 0.0) for setup, look in panels.looks.items()]
    return panels.finished(f"open heads of {heads} (faint: single runs; others: means over seeds)", keys)


def _draw(axes: Axes, runs: pl.DataFrame, look: Look) -> None:
    axes.plot(
        runs["kept"], runs["score"], marker=look.shape, linestyle="none", color=look.colour,
        markersize=2.4, markeredgewidth=0.4, alpha=0.4,
    )  # fmt: skip
    means = (
        runs.drop_nulls("setting")
        .group_by("setting")
        .agg(
            pl.col("kept", "score").mean(),
            pl.col("kept", "score").std().fill_null(0).name.suffix("_spread"),
        )
        .sort("kept", "setting")
    )
    if means.is_empty():
        return
    axes.errorbar(
        means["kept"], means["score"], means["score_spread"], means["kept_spread"],
        marker=look.shape, linestyle="-" if means.height > 1 else "none", color=look.colour,
        linewidth=0.9, elinewidth=0.6, markersize=4, markeredgewidth=0.6,
    )  # fmt: skip
