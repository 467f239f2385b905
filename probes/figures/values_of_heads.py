"""One value per head as a map."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtl.probes.figures.correlation import MAP
from mtl.probes.figures.style import (
    COLUMN,
    cell_inches,
    colour_bar,
    figure_of,
    grid_size,
    head_axes,
    new_figure,
    styled,
)
from mtl.probes.sites import grid


@styled
def values_of_heads(values: pl.DataFrame, title: str) -> Figure:
    """A figure with a map of `values` (attention, layer, head, value)."""
    sites, heads = grid_size(values)
    figure = new_figure(cell_inches(len(sites), heads, COLUMN - 0.7) + 0.5)
    draw_values(values, title, figure.subplots())
    return figure


@styled
def draw_values(values: pl.DataFrame, title: str, axes: Axes) -> None:
    """Draw the map on given axes; white is zero, and blue is below zero if there are negative values."""
    sites, heads = grid_size(values)
    cells = grid(values, "value", sites, heads)
    most = float(np.nanmax(np.abs(cells), initial=0)) or 1.0
    signed = bool(np.nanmin(cells, initial=0) < 0)
    image = axes.imshow(
        np.ma.masked_invalid(cells), cmap=MAP if signed else "Reds", vmin=-most if signed else 0, vmax=most,
        aspect="auto", interpolation="nearest",
    )  # fmt: skip
    head_axes(axes, sites, heads, COLUMN - 0.7)
    colour_bar(figure_of(axes), image, title, ax=axes, fraction=0.05, pad=0.02)
