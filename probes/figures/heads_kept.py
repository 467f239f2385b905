"""Score against the number of heads kept."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle

from probes.figures.style import COLOURS, COLUMN, INK, MARKERS, new_figure, styled

FILLS = ("full", "none")
"""Of markers, once all of them are used."""


@styled
def heads_kept(runs: pl.DataFrame, heads: int) -> Figure:
    """A faint point for each run, and per setting the mean over seeds with its spread.

    `runs`: task, setup, setting (penalty or target; null where runs of a setup are no series), kept, score.
    `heads`: how many the encoder has. Colours are tasks and markers setups. Lines join the settings of one
    setup and no others: runs that were trained differently differ in more than the number of heads. Bars are
    standard deviations over seeds (n - 1), both ways.
    """
    tasks, setups = (list(runs[name].unique(maintain_order=True)) for name in ("task", "setup"))
    figure = new_figure(2.2 + 0.13 * len(setups), COLUMN)
    axes = figure.subplots()
    colours = {task: COLOURS[place % len(COLOURS)] for place, task in enumerate(tasks)}
    kinds = [(marker, fill) for fill in FILLS for marker in MARKERS]
    marks = {setup: kinds[place % len(kinds)] for place, setup in enumerate(setups)}
    for (setup, task), own in runs.group_by("setup", "task", maintain_order=True):
        (marker, fill), colour = marks[str(setup)], colours[str(task)]
        axes.plot(
            own["kept"], own["score"], marker=MarkerStyle(marker, fill), linestyle="none", color=colour,
            markersize=2.4, markeredgewidth=0.4, alpha=0.4,
        )  # fmt: skip
        means = (
            own.drop_nulls("setting")
            .group_by("setting")
            .agg(
                pl.col("kept", "score").mean(),
                pl.col("kept", "score").std().fill_null(0).name.suffix("_spread"),
            )
            .sort("kept", "setting")
        )
        if means.is_empty():
            continue
        axes.errorbar(
            means["kept"], means["score"], means["score_spread"], means["kept_spread"],
            marker=MarkerStyle(marker, fill), linestyle="-" if means.height > 1 else "none", color=colour,
            linewidth=0.9, elinewidth=0.6, markersize=4, markeredgewidth=0.6,
        )  # fmt: skip
    axes.set_xlim(-0.03 * heads, 1.03 * heads)
    axes.set_xlabel(f"open heads of {heads}")
    axes.set_ylabel("score")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.4)
    of_tasks = [Line2D([], [], color=colour, linewidth=2, label=task) for task, colour in colours.items()]
    figure.legend(handles=of_tasks, loc="outside upper center", ncols=min(5, len(tasks)))
    of_setups = [
        Line2D(
            [], [], color=INK, marker=MarkerStyle(marker, fill), linestyle="none", markersize=4, label=name
        )
        for name, (marker, fill) in marks.items()
    ]
    figure.legend(handles=of_setups, loc="outside lower center", ncols=1 if len(setups) < 7 else 2)
    return figure
