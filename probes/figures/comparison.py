"""The difference between two setups' scores, with three intervals for each task."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.probes.figures.palette import colour_of
from mtl.probes.figures.style import COLOURS, COLUMN, INK, new_figure, open_frame, styled, wrapped
from mtl.probes.task_order import by_catalogue

_INTERVALS = {
    "both": ("other runs on other sentences", COLOURS[0], 2.2),
    "seeds": ("other runs on these sentences", COLOURS[1], 1.2),
    "sentences": ("these runs on other sentences", COLOURS[2], 1.2),
}


@styled
def comparison_figure(table: pl.DataFrame, first: str, second: str) -> Figure:
    """A row per task; right of the line, the first side scores higher.

    The legend has the intervals that are known for at least one task. `table` is that of
    `mtl.runs.compare.comparison`; `first` and `second` name the two sides.
    """
    table = by_catalogue(table)
    colours = {name: colour_of(label, usual) for name, (label, usual, _) in _INTERVALS.items()}
    tasks = list(table["task"])
    below = wrapped(f"points: {first} less {second}", width=COLUMN - 0.5, letter=0.06)
    figure = new_figure(0.3 * len(tasks) + 0.95 + 0.12 * below.count("\n"), COLUMN)
    axes = figure.subplots()
    shown = [name for name in _INTERVALS if table[f"{name}_low"].count()]
    for place, row in enumerate(table.iter_rows(named=True)):
        for number, (name, (_, _, width)) in enumerate(_INTERVALS.items()):
            if row[f"{name}_low"] is not None:
                height = place + 0.22 * (number - 1)
                axes.hlines(
                    height, row[f"{name}_low"], row[f"{name}_high"], color=colours[name], linewidth=width
                )
                axes.plot([row["difference"]], [height], "o", color=colours[name], markersize=2.5)
    axes.axvline(0, color=INK, linewidth=0.5)
    axes.set_yticks(range(len(tasks)), tasks)
    axes.set_ylim(len(tasks) - 0.4, -0.6)
    axes.set_xlabel(below)
    open_frame(axes, "x")
    axes.tick_params(axis="y", length=0)
    handles = [
        Line2D([], [], color=colours[name], linewidth=width, label=label)
        for name, (label, _, width) in _INTERVALS.items()
        if name in shown
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=1)
    return figure
