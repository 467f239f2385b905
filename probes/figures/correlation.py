"""The matrix of correlations between tasks' masks."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from mtl.probes.appearance import ordered
from mtl.probes.figures.style import COLUMN, INK, colour_bar, is_dark, new_figure, styled

MAP = "RdBu_r"
"""Diverging: white is a correlation of zero, blue below, red above."""
KEY = 1.7
"""Width in inches that the text of the key needs."""
CELL = 0.2
"""Least width in inches of a cell, into which its number has to fit; with more names, the figure is wider."""
SLANTED = 1.2
"""Length in inches up to which names are also written below the columns; longer names have numbers there."""
NAMES = {
    "paper": "Pearson, %\n(diagonal: √ adjusted R²)",
    "pairwise": "Pearson, %",
    "spearman": "Spearman, %\n(diagonal: seeds)",
    "pearson": "Pearson, %\n(diagonal: seeds)",
}
"""The columns with correlations, and how the key of the figure prints them."""


@styled
def correlation_matrix(table: pl.DataFrame, value: str = "paper") -> Figure:
    """Correlations in per cent, each pair once; a dash if one is not defined.

    Long names have numbers, which stand for them below the columns. `table` has the columns `first`, `second`
    and `value`, a key of `NAMES`: it is a `correlation_table`, or an `agreement` of one measure.
    """
    names = ordered(pl.concat([table["first"], table["second"]]).unique(maintain_order=True))
    place = {name: index for index, name in enumerate(names)}
    matrix = np.full((len(names), len(names)), np.nan)
    for first, second, number in table.select("first", "second", value).iter_rows():
        earlier, later = sorted((place[first], place[second]))
        matrix[later, earlier] = np.nan if number is None else 100 * number
    longest = 0.055 * max(map(len, names))
    numbered = longest > SLANTED
    cell = max(CELL, min(0.42, (COLUMN - longest - 0.2) / len(names)))
    # The key below is as wide as its text, however few names there are.
    width = max(cell * len(names) + longest + 0.2, KEY)
    figure = new_figure(cell * len(names) + (0.15 if numbered else longest) + 0.7, width)
    axes, below = figure.subplots(2, 1, height_ratios=[cell * len(names), 0.06])
    image = axes.imshow(np.ma.masked_invalid(matrix), cmap=MAP, vmin=-100, vmax=100, aspect="auto")
    dark = is_dark(image.cmap(image.norm(matrix))[..., :3])
    for row, column in zip(*np.tril_indices(len(names)), strict=True):
        number = matrix[row, column]
        missing = np.isnan(number)
        axes.text(
            column, row, "–" if missing else f"{number:z.0f}", ha="center", va="center",
            color=INK if missing else "white" if dark[row, column] else "black",
            fontweight="bold" if row == column else "normal",
        )  # fmt: skip
    numbers = [str(number) for number in range(1, len(names) + 1)]
    below_columns = numbers if numbered else names
    axes.set_xticks(range(len(names)), below_columns, rotation=45 if max(map(len, below_columns)) > 4 else 0)
    beside_rows = [f"{name}  {number}" for name, number in zip(names, numbers, strict=True)]
    axes.set_yticks(range(len(names)), beside_rows if numbered else names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    colour_bar(figure, image, NAMES[value], cax=below, orientation="horizontal", ticks=[-100, 0, 100])
    return figure
