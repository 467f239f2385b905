"""What tasks score less in one way of training than in another, with intervals over runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from mtl.probes.figures.looks import looks_of
from mtl.probes.figures.style import COLUMN, FAINT, INK, new_figure, open_frame, styled
from mtl.probes.stem_cell.statistics.sharing import ALL, MARGIN
from mtl.probes.task_order import tasks_in


@styled
def sharing_figure(table: pl.DataFrame, among: Sequence[str] = (), to: str = "training jointly") -> Figure:
    """A row per task, a colour per setup; right of the line scores are lost, the dashed line is the margin.

    `table` is that of `mtl.probes.stem_cell.statistics.sharing`; `among`: the other setups on the page
    (`looks_of`); `to`: what points are lost to. Intervals are cut at three times the largest loss or margin;
    the mean over tasks has none.
    """
    setups = list(table["setup"].unique(maintain_order=True))
    looks = looks_of(setups, among)
    tasks = [task for task in tasks_in(table) if task != ALL]
    tasks += [ALL] * (ALL in set(table["task"]))
    figure = new_figure(0.12 * len(tasks) * max(1.5, len(setups)) + 0.5 + 0.13 * len(setups), COLUMN)
    axes = figure.subplots()
    widest = 3 * max(*np.abs(table["loss"].to_numpy()), MARGIN)
    for number, (setup, look) in enumerate(looks.items()):
        for row in table.filter(pl.col("setup") == setup).iter_rows(named=True):
            place = tasks.index(row["task"]) + 0.7 * ((number + 0.5) / len(setups) - 0.5)
            if row["low"] is not None:
                low, high = max(row["low"], -widest), min(row["high"], widest)
                axes.hlines(place, low, high, color=look.colour, linewidth=0.9)
            axes.plot([row["loss"]], [place], look.shape, color=look.colour, markersize=3)
    axes.axvline(0, color=INK, linewidth=0.5)
    axes.axvline(MARGIN, color=FAINT, linewidth=0.6, linestyle="--")
    axes.set_yticks(range(len(tasks)), tasks)
    axes.set_ylim(len(tasks) - 0.4, -0.6)
    axes.set_xlabel(f"points lost to {to}, 95 % over runs")
    open_frame(axes, "x")
    axes.tick_params(axis="y", length=0)
    handles = [look.key(setup, 3.0, 1.5) for setup, look in looks.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=1 if len(setups) < 3 else 2)
    return figure
