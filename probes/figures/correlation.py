"""The matrix of correlations between tasks' masks."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from probes.figures.style import COLUMN, INK, new_figure, styled


@styled
def correlation_matrix(table: pl.DataFrame, value: Literal["paper", "pairwise"] = "paper") -> Figure:
    """Correlations in per cent (as of `correlation_table`); a dash where one is not defined."""
    names = list(table["first"].unique(maintain_order=True))
    place = {name: index for index, name in enumerate(names)}
    matrix = np.full((len(names), len(names)), np.nan)
    for first, second, number in table.select("first", "second", value).iter_rows():
        known = np.nan if number is None else 100 * number
        matrix[place[first], place[second]] = matrix[place[second], place[first]] = known
    width = min(COLUMN, 1.1 + 0.42 * len(names))
    figure = new_figure(width - 0.1, width)
    axes = figure.subplots()
    shades = np.ma.masked_invalid(matrix)
    lowest = min(0.0, float(shades.min())) if shades.count() else 0.0
    image = axes.imshow(shades, cmap="cividis_r", vmin=lowest, vmax=100)
    for (row, column), number in np.ndenumerate(matrix):
        missing = np.isnan(number)
        dark = not missing and np.mean(image.cmap(image.norm(number))[:3]) < 0.5
        axes.text(
            column, row, "–" if missing else f"{number:.0f}", ha="center", va="center",
            color="white" if dark else INK, fontweight="bold" if row == column else "normal",
        )  # fmt: skip
    axes.set_xticks(range(len(names)), names, rotation=45 if max(map(len, names)) > 4 else 0)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, fraction=0.045, pad=0.03)
    bar.set_label("Pearson, %" if value == "pairwise" else "Pearson, % (diagonal: √ adjusted R²)")
    bar.outline.set_linewidth(0.5)
    return figure
