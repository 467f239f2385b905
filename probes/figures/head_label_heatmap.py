"""Which head knows which label."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from probes.figures.style import COLUMN, INK, grid_size, new_figure, styled


@styled
def head_label_heatmap(values: pl.DataFrame, top: int = 30) -> Figure:
    """All heads across, the `top` most frequent labels downwards, the best head of a label marked.

    `values`: label, layer, head, value (0 to 1), count, one row for each label and head of one task. The
    axis says how many labels were left out.
    """
    counts = (
        values.group_by("label").agg(pl.col("count").max()).sort("count", "label", descending=[True, False])
    )
    shown = list(counts["label"][:top])
    layers, heads = grid_size(values)
    matrix = np.full((len(shown), layers * heads), np.nan)
    place = {label: row for row, label in enumerate(shown)}
    for label, layer, head, value in values.select("label", "layer", "head", "value").iter_rows():
        if label in place:
            matrix[place[label], layer * heads + head] = 100 * value
    height = 0.11 * len(shown)
    figure = new_figure(height + 0.85, COLUMN)
    axes, below = figure.subplots(2, 1, height_ratios=[height, 0.06])
    image = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    for row, cells in enumerate(matrix):
        if not np.isnan(cells).all():
            axes.plot(
                np.nanargmax(cells),
                row,
                marker="o",
                markersize=3,
                markerfacecolor="none",
                markeredgecolor="#D55E00",
                markeredgewidth=0.8,
            )
    for layer in range(1, layers):
        axes.axvline(layer * heads - 0.5, color="white", linewidth=0.6)
    axes.set_xticks((np.arange(layers) + 0.5) * heads - 0.5, [str(layer + 1) for layer in range(layers)])
    axes.set_yticks(range(len(shown)), shown)
    axes.tick_params(
        top=True, labeltop=True, bottom=False, labelbottom=False, length=0, pad=1.5, labelcolor=INK
    )
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(f"layer ({heads} heads in each)")
    if counts.height > len(shown):
        axes.set_ylabel(f"label ({counts.height - len(shown)} rarer ones left out)")
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, cax=below, orientation="horizontal")
    bar.set_label("accuracy, % (circle: best head)")
    bar.outline.set_linewidth(0.5)
    return figure
