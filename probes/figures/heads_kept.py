"""Score against the number of heads kept."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from probes.figures.style import COLOURS, COLUMN, MARKERS, new_figure, styled


@styled
def heads_kept(runs: pl.DataFrame, heads: int) -> Figure:
    """A point for each run, and a line through the mean scores at each number of heads.

    `runs`: series (a task, or a task in a setup), kept, score. `heads`: how many the encoder has.
    """
    series = list(runs["series"].unique(maintain_order=True))
    figure = new_figure(2.2, COLUMN)
    axes = figure.subplots()
    for place, name in enumerate(series):
        own = runs.filter(pl.col("series") == name)
        mean = own.group_by("kept").agg(pl.col("score").mean()).sort("kept")
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(mean["kept"], mean["score"], color=colour, linewidth=0.9)
        axes.plot(
            own["kept"], own["score"], linestyle="none", marker=MARKERS[place % len(MARKERS)], color=colour,
            markersize=3.2, markeredgewidth=0, alpha=0.8, label=name,
        )  # fmt: skip
    axes.set_xlim(-0.03 * heads, 1.03 * heads)
    axes.set_xlabel(f"open heads of {heads}")
    axes.set_ylabel("score")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.4)
    figure.legend(loc="outside upper center", ncols=min(5, len(series)))
    return figure
