"""What every head is worth, as a map for each task and setup."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from mtl.probes.appearance import ordered
from mtl.probes.figures.correlation import MAP
from mtl.probes.figures.style import (
    COLUMN,
    cell_inches,
    colour_bar,
    grid_size,
    head_axes,
    new_figure,
    styled,
    wrapped,
)
from mtl.probes.sites import grid
from mtl.probes.statistics.head_values import SIGNED
from mtl.probes.task_order import tasks_in

WIDEST = 2
"""The most columns of a paper that a figure with several kinds of attention takes."""
ROOM = 1.1
"""Least width in inches of a map with its numbers; with more setups, the figure is wider."""
LETTER = 0.053
"""Width in inches of a letter of the key beside a map; a map is at least as high as its key is long."""
LINE = 0.12
"""Height in inches of a line of a title."""


@styled
def head_maps(means: pl.DataFrame, measure: str, key: str) -> Figure:
    """A row of maps per task, with a map per setup and kind of attention; a dot: significant in most runs.

    `means` are those of `head_means`, for one measure. The maps of a task have the same colours: white is
    zero, and blue is below zero if values are or may be negative. `key` names the measure beside its colours.
    """
    tasks = tasks_in(means)
    sites, heads = grid_size(means)
    kinds = list(dict.fromkeys(site.attention for site in sites))
    columns = list(itertools.product(ordered(means["setup"].unique(maintain_order=True)), kinds))
    width = COLUMN * (1 if len(kinds) == 1 else min(len(columns) // len(kinds), WIDEST))
    width = max(width, ROOM * len(columns))
    titles = {
        (task, setup, kind): wrapped(
            f"{task}, {setup}", *[kind] * (len(kinds) > 1), width=width / len(columns), letter=0.065
        )
        for task, (setup, kind) in itertools.product(tasks, columns)
    }
    lines = max(title.count("\n") + 1 for title in titles.values())
    across = width / len(columns) - 0.3
    tallest = max(sum(site.attention == kind for site in sites) for kind in kinds)
    map_height = max(cell_inches(tallest, heads, across), LETTER * len(key))
    height = map_height + 0.43 + LINE * lines
    figure = new_figure(len(tasks) * height + 0.15, width)
    panels = figure.subplots(len(tasks), len(columns), squeeze=False)
    signed = measure in SIGNED or bool((means["value"] < 0).any())
    for task, row in zip(tasks, panels, strict=True):
        of_task = means.filter(pl.col("task") == task)
        most = float(np.nanmax(np.abs(of_task["value"].fill_null(np.nan).to_numpy()), initial=0)) or 1.0
        image = None
        for (setup, kind), axes in zip(columns, row, strict=True):
            cells = of_task.filter(pl.col("setup") == setup, pl.col("attention") == kind)
            if cells.is_empty():
                axes.axis("off")
                continue
            layers = [site for site in sites if site.attention == kind]
            values = grid(cells, "value", layers, heads)
            image = axes.imshow(
                np.ma.masked_invalid(values),
                cmap=MAP if signed else "Reds",
                vmin=-most if signed else 0,
                vmax=most,
                aspect="auto",
                interpolation="nearest",
            )
            marked = np.argwhere(grid(cells, "significant", layers, heads) == 1)
            axes.plot(
                marked[:, 1], marked[:, 0], linestyle="", marker="o", markersize=2.2, color="black",
                markeredgecolor="white", markeredgewidth=0.4,
            )  # fmt: skip
            head_axes(axes, layers, heads, across)
            axes.set_title(titles[task, setup, kind])
        if image is not None:
            colour_bar(figure, image, key, ax=list(row), fraction=0.05, pad=0.02)
    return figure
