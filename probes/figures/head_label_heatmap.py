"""How well each head knows each label."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from mtl.probes.figures.style import COLUMN, INK, colour_bar, grid_size, new_figure, site_ticks, styled
from mtl.probes.sites import grid, kind_starts
from mtl.probes.tables.best_heads import label_name
from mtl.probes.tables.label_scores import FEWEST_ITEMS
from mtl.tasks.in_words import counted


@styled
def head_label_heatmap(values: pl.DataFrame, top: int = 30) -> Figure:
    """A column for each head, a row for each of the `top` most frequent labels, the best head of each marked.

    `values`: label, attention, layer, head, value (0 to 1), count, counted, with a row for each label and
    head of one task. Labels that do not count have a star. The axis gives the number of labels that are left
    out.
    """
    counts = (
        values.group_by("label")
        .agg(pl.col("count", "counted").max())
        .sort("count", "label", descending=[True, False])
    )
    shown = list(counts["label"][:top])
    starred = [label_name(row) for row in counts[:top].iter_rows(named=True)]
    sites, heads = grid_size(values)
    by_label = dict(values.group_by("label"))
    matrix = np.stack([100 * grid(by_label[label,], "value", sites, heads).ravel() for label in shown])
    below_count = "" if counts[:top]["counted"].all() else f"\n* root, or fewer than {FEWEST_ITEMS} items"
    height = 0.11 * len(shown)
    figure = new_figure(height + (0.97 if below_count else 0.85), COLUMN)
    axes, below = figure.subplots(2, 1, height_ratios=[height, 0.06])
    image = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    for row, cells in enumerate(matrix):
        if not np.isnan(cells).all():
            axes.plot(
                np.nanargmax(cells), row, marker="o", markersize=3, markerfacecolor="none",
                markeredgecolor="#D55E00", markeredgewidth=0.8,
            )  # fmt: skip
    starts = kind_starts(sites)
    for layer in range(1, len(sites)):
        axes.axvline(layer * heads - 0.5, color="white", linewidth=2 if layer in starts else 0.6)
    places, texts = site_ticks(sites, between="\n")
    axes.set_xticks((np.array(places) + 0.5) * heads - 0.5, texts)
    axes.set_yticks(range(len(shown)), starred)
    axes.tick_params(
        top=True, labeltop=True, bottom=False, labelbottom=False, length=0, pad=1.5, labelcolor=INK
    )
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(f"layer ({counted(heads, 'head')} in each)")
    if counts.height > len(shown):
        axes.set_ylabel(f"label ({counts.height - len(shown)} rarer ones left out)")
    axes.spines[:].set_visible(False)
    key = f"accuracy, % (circle: best head){below_count}"
    colour_bar(figure, image, key, cax=below, orientation="horizontal")
    return figure
