"""How far tasks claim the same heads, beside chance, a control task, and a task with itself."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from mtl.probes.figures.style import COLOURS, COLUMN, GRID, new_figure, styled
from mtl.probes.statistics.wanted import KINDS


@styled
def wanted_figure(table: pl.DataFrame) -> Figure:
    """A column of dots per kind of comparison (a dot per pair of tasks, or task) and their mean as a bar.

    `table` is that of `mtl.probes.statistics.wanted.wanted`.
    """
    kinds = [kind for kind in KINDS if kind in set(table["kind"])]
    figure = new_figure(1.8, COLUMN)
    axes = figure.subplots()
    for place, kind in enumerate(kinds):
        values = table.filter(pl.col("kind") == kind)["jaccard"].drop_nulls().sort().to_numpy()
        if not len(values):
            continue
        aside = 0.12 * np.sin(2.4 * np.arange(len(values)))
        axes.plot(place + aside, values, "o", color=COLOURS[place], markersize=2.6, alpha=0.6, linewidth=0)
        axes.hlines(values.mean(), place - 0.28, place + 0.28, color=COLOURS[place], linewidth=1.6)
    axes.set_xticks(range(len(kinds)), [kind.replace(", ", ",\n") for kind in kinds])
    axes.set_xlim(-0.5, len(kinds) - 0.5)
    axes.set_ylim(0, 1)
    axes.set_ylabel("Jaccard of claimed heads")
    axes.grid(axis="y", color=GRID, linewidth=0.4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", length=0)
    return figure
