"""The contest for heads: one panel per task, from partners that do not claim a head to those that do."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.probes.figures.palette import colour_of
from mtl.probes.figures.style import COLOURS, FAINT, INK, open_frame, panel_figure, styled
from mtl.probes.stem_cell.statistics.contest_cells import CONTROL, TWIN
from mtl.probes.task_order import tasks_in

APART, BESIDE = 1.0, 2.0
SIDES = {CONTROL: 0.0, TWIN: 3.0}
SIDE_COLOURS = {CONTROL: COLOURS[2], TWIN: COLOURS[1]}
PANEL = 1.6


@styled
def contest_figure(lines: pl.DataFrame, means: pl.DataFrame, sides: pl.DataFrame) -> Figure:
    """Grey: the heads that a task claims itself. Blue: their mean, and its fall by beta with the interval.

    At the sides are the control task and the twin, with intervals over seeds. The tables are those of
    `head_lines`, `task_means` and `side_means` (`mtl.probes.stem_cell.statistics.contest_lines`). Raises
    `ValueError` without a head to compare.
    """
    tasks = tasks_in(lines)
    if not tasks:
        raise ValueError("no claimed head has both a partner that claims it and one that does not")
    shown = [name for name in SIDES if name in set(sides["partner"])]
    places = {APART: "not\nclaimed", BESIDE: "claimed"} | {SIDES[name]: name for name in shown}
    figure, panels = panel_figure(len(tasks), PANEL, 0.45, sharex=True, sharey=True)
    for task, axes in zip(tasks, panels, strict=True):
        _panel(axes, *(table.filter(pl.col("task") == task) for table in (lines, means, sides)))
        axes.set_title(task)
        axes.set_xticks(sorted(places), [places[place] for place in sorted(places)])
        axes.tick_params(axis="x", length=0, labelbottom=True)
        axes.set_xlim(min(places) - 0.4, max(places) + 0.4)
        open_frame(axes)
    mean = colour_of("mean", COLOURS[0])
    figure.supylabel("worth to the task, standardised logs", fontsize=7)
    figure.supxlabel("by the partner that the task is trained with", fontsize=7)
    handles = [
        Line2D([], [], color=FAINT, linewidth=0.6, label="a head that the task claims"),
        Line2D([], [], color=mean, marker="o", markersize=3, label="mean, 95 %"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def _panel(axes: Axes, lines: pl.DataFrame, means: pl.DataFrame, sides: pl.DataFrame) -> None:
    for apart, beside in lines.select("apart", "beside").iter_rows():
        axes.plot([APART, BESIDE], [apart, beside], color=FAINT, linewidth=0.5, alpha=0.7)
    mean = colour_of("mean", COLOURS[0])
    for row in means.iter_rows(named=True):
        start, end = row["apart"], row["apart"] - row["beta"]
        axes.plot(
            [APART, BESIDE], [start, end], color=mean, linewidth=1.3, marker="o", markersize=3, zorder=3
        )
        interval = start - row["high"], start - row["low"]
        if np.isfinite(interval).all():
            axes.vlines(BESIDE, *interval, color=mean, linewidth=1.3, zorder=3)
        else:
            # Too few orders of claims for an end: the whole panel.
            axes.axvline(BESIDE, color=mean, linewidth=1.3, zorder=3)
    for row in sides.iter_rows(named=True):
        place = SIDES[row["partner"]]
        colour = colour_of(row["partner"], SIDE_COLOURS[row["partner"]])
        axes.plot([place], [row["mean"]], marker="s", color=colour, markersize=3, zorder=3)
        if row["low"] is not None:
            axes.vlines(place, row["low"], row["high"], color=colour, linewidth=1.0, zorder=3)
    axes.axhline(0, color=INK, linewidth=0.3)
