"""How far tasks claim the same heads, beside chance, a control task, and a task with itself."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.probes.appearance import ordered
from mtl.probes.figures.palette import colour_of
from mtl.probes.figures.style import COLOURS, COLUMN, INK, new_figure, open_frame, styled
from mtl.probes.stem_cell.statistics.wanted import KINDS


@styled
def wanted_figure(table: pl.DataFrame) -> Figure:
    """A column of dots per kind of comparison (a dot per pair of tasks, or task) and their mean as a bar.

    Where a target forced heads open, hollow dots and a dashed bar beside it are those of learned heads alone.
    `table` is that of `mtl.probes.stem_cell.statistics.wanted.wanted`.
    """
    kinds = ordered(kind for kind in KINDS if kind in set(table["kind"]))
    forced = not table["learned"].equals(table["jaccard"], null_equal=True)
    figure = new_figure(1.8 + 0.2 * forced, COLUMN)
    axes = figure.subplots()
    for place, kind in enumerate(kinds):
        colour = colour_of(kind, COLOURS[KINDS.index(kind)])
        of_kind = table.filter(pl.col("kind") == kind)
        _column(axes, of_kind["jaccard"], place - 0.2 * forced, colour, "full")
        if forced:
            _column(axes, of_kind["learned"], place + 0.2, colour, "none")
    axes.set_xticks(range(len(kinds)), [kind.replace(", ", ",\n") for kind in kinds])
    axes.set_xlim(-0.5, len(kinds) - 0.5)
    axes.set_ylim(0, 1)
    axes.set_ylabel("Jaccard of open heads,\nseed by seed")
    open_frame(axes)
    axes.tick_params(axis="x", length=0)
    if forced:
        handles = [
            Line2D(
                [], [], color=INK, marker="o", markerfacecolor=face, linestyle=line, markersize=3.5,
                label=label,
            )
            for label, face, line in (("open heads", INK, "-"), ("learned alone", "white", "--"))
        ]  # fmt: skip
        figure.legend(handles=handles, loc="outside upper center", ncols=2, handlelength=3.5)
    return figure


def _column(axes: Axes, jaccard: pl.Series, place: float, colour: str, fill: Literal["full", "none"]) -> None:
    values = jaccard.drop_nulls().sort().to_numpy()
    if not len(values):
        return
    aside = 0.06 * np.sin(2.4 * np.arange(len(values)))
    axes.plot(
        place + aside, values, "o", color=colour, markersize=2.6, alpha=0.6, linewidth=0, fillstyle=fill
    )
    style = "-" if fill == "full" else "--"
    axes.hlines(values.mean(), place - 0.17, place + 0.17, color=colour, linewidth=1.6, linestyle=style)
