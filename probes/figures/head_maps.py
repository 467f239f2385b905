"""What every head is worth, as a map for each task and setup."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from probes.figures.correlation import MAP
from probes.figures.style import COLUMN, cell_inches, grid_size, head_axes, new_figure, styled
from probes.sites import grid
from probes.statistics.head_values import SIGNED


@styled
def head_maps(means: pl.DataFrame, measure: str, key: str) -> Figure:
    """A row of maps per task, a map per setup; a dot marks heads that are significant in most runs.

    `means` as `head_means` gives them, of one measure. A task's maps share their colours: white is zero, and
    blue is below it where values may be or are negative. `key` names the measure beside its colours.
    """
    tasks = list(means["task"].unique(maintain_order=True))
    setups = list(means["setup"].unique(maintain_order=True))
    sites, heads = grid_size(means)
    across = COLUMN / len(setups) - 0.3
    height = cell_inches(len(sites), heads, across) + 0.55
    figure = new_figure(len(tasks) * height + 0.15, COLUMN)
    panels = figure.subplots(len(tasks), len(setups), squeeze=False)
    signed = measure in SIGNED or bool((means["value"] < 0).any())
    for task, row in zip(tasks, panels, strict=True):
        of_task = means.filter(pl.col("task") == task)
        most = float(np.nanmax(np.abs(of_task["value"].fill_null(np.nan).to_numpy()), initial=0)) or 1.0
        image = None
        for setup, axes in zip(setups, row, strict=True):
            cells = of_task.filter(pl.col("setup") == setup)
            if cells.is_empty():
                axes.axis("off")
                continue
            values = grid(cells, "value", sites, heads)
            image = axes.imshow(
                np.ma.masked_invalid(values),
                cmap=MAP if signed else "Reds",
                vmin=-most if signed else 0,
                vmax=most,
                aspect="auto",
                interpolation="nearest",
            )
            marked = np.argwhere(grid(cells, "significant", sites, heads) == 1)
            axes.plot(
                marked[:, 1], marked[:, 0], linestyle="", marker="o", markersize=2.2, color="black",
                markeredgecolor="white", markeredgewidth=0.4,
            )  # fmt: skip
            head_axes(axes, sites, heads, across)
            axes.set_title(f"{task}, {setup}")
        if image is not None:
            bar = figure.colorbar(image, ax=list(row), fraction=0.05, pad=0.02)
            bar.set_label(key)
            bar.outline.set_linewidth(0.5)
    return figure
