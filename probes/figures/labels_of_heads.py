"""What heads are best at: the label in each head's cell, and accuracy by layer with a line for each label.

These are the pictures of He & Choi 2021 (`dep_map.py`, `dep_line.py`), with chance beside them.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from mtl.probes.figures.style import (
    COLUMN,
    INK,
    cell_inches,
    colour_bar,
    grid_size,
    head_axes,
    is_dark,
    looks_of,
    new_figure,
    open_frame,
    site_ticks,
    styled,
)
from mtl.probes.sites import KEYS, grid, kind_starts
from mtl.probes.tables.label_scores import FEWEST_ITEMS, best_of_labels
from mtl.tasks.in_words import counted

WIDTH = 2 * COLUMN
"""Width of the map in inches: the labels have to fit into its cells."""
LETTER = 0.6
"""Width of a letter as a share of its size."""
SIZES = (3.0, 6.0)
"""The smallest and the largest size of the letters in a cell, in points."""
NO_LABEL = f"no label with at least {FEWEST_ITEMS} items: probe more sentences"


def best_label_of_heads(values: pl.DataFrame) -> pl.DataFrame:
    """For each head the label on which it is farthest above chance; no row for heads above it on none.

    `values` are those of `skills`, for one task and regime; only labels that count are used. Columns:
    attention, layer, head, label, value, chance, skill, count.
    """
    rows = values.filter(pl.col("counted") & (pl.col("skill") > 0))
    best = rows.sort("skill", "count", "label", descending=[True, True, False], maintain_order=True)
    chosen = best.group_by(KEYS, maintain_order=True).first()
    return chosen.select(*KEYS, "label", "value", "chance", "skill", "count")


def best_by_layer(values: pl.DataFrame) -> pl.DataFrame:
    """For each label that counts and each layer its best head, with the chance level of the layer's best.

    `values` are those of `skills`, for one task and regime. Columns: label, count, attention, layer, head,
    value, chance; frequent labels first.
    """
    site = ["attention", "layer"]
    best = best_of_labels(values.filter("counted"), site)
    chosen = best.select("label", "count", *KEYS, "value", "chance")
    return chosen.sort("count", "label", "attention", "layer", descending=[True, False, False, False])


@styled
def label_map(values: pl.DataFrame) -> Figure:
    """The best label of each head in its cell (`best_label_of_heads`), on the colour of its skill.

    An empty cell is a head that is above chance on no label. Raises `ValueError` if no label counts.
    """
    if not values["counted"].any():
        raise ValueError(NO_LABEL)
    best = best_label_of_heads(values)
    sites, heads = grid_size(values)
    skill = 100 * grid(best, "skill", sites, heads)
    across = WIDTH - 0.7
    figure = new_figure(max(cell_inches(len(sites), 2 * heads, across), 0.16 * len(sites)) + 0.9, WIDTH)
    axes, below = figure.subplots(2, 1, height_ratios=[30, 1])
    image = axes.imshow(
        np.ma.masked_invalid(skill), cmap="Blues", vmin=0, vmax=100, aspect="auto", interpolation="nearest"
    )
    dark = is_dark(image.cmap(image.norm(np.nan_to_num(skill)))[..., :3])
    row = {(site.attention, site.layer): number for number, site in enumerate(sites)}
    for attention, layer, head, label in best.select(*KEYS, "label").iter_rows():
        place = row[attention, layer]
        size = 72 * (across / heads - 0.03) / (LETTER * max(len(label), 1))
        axes.text(
            head, place, label, ha="center", va="center", fontsize=float(np.clip(size, *SIZES)),
            color="white" if dark[place, head] else "black",
        )  # fmt: skip
    head_axes(axes, sites, heads, across)
    colour_bar(
        figure, image, "accuracy above chance on the label in the cell, points", cax=below,
        orientation="horizontal",
    )  # fmt: skip
    return figure


@styled
def layer_lines(values: pl.DataFrame, top: int = 8) -> Figure:
    """The accuracy of each layer's best head, a line for each of the `top` most frequent labels.

    A dotted line is chance for the label, the best of the layer's heads. `values` are those of `skills`, for
    one task and regime. Raises `ValueError` if no label counts.
    """
    best = best_by_layer(values)
    if best.is_empty():
        raise ValueError(NO_LABEL)
    labels = best["label"].unique(maintain_order=True).to_list()
    sites, _ = grid_size(values)
    place = {(site.attention, site.layer): number for number, site in enumerate(sites)}
    looks = looks_of(labels[:top], known=labels[:top])
    figure = new_figure(2.4)
    axes = figure.subplots()
    for label in labels[:top]:
        rows = best.filter(pl.col("label") == label)
        across = [place[each] for each in rows.select("attention", "layer").iter_rows()]
        order = np.argsort(across)
        look = looks[label]
        for column, style, mark in (("value", "-", look.shape), ("chance", ":", "")):
            axes.plot(
                np.array(across)[order], 100 * rows[column].to_numpy()[order], color=look.colour,
                linestyle=style, linewidth=0.9 if mark else 0.7, marker=mark, markersize=3,
                label=look.named(label) if mark else None,
            )  # fmt: skip
    for start in kind_starts(sites)[1:]:
        axes.axvline(start - 0.5, color=INK, linewidth=0.6)
    axes.set_xticks(*site_ticks(sites, COLUMN - 0.6, between="\n"))
    axes.set_ylim(-2, 102)
    axes.set_xlabel("layer")
    axes.set_ylabel("accuracy of its best head, %\n(dotted: chance)")
    open_frame(axes)
    left = len(labels) - top
    entry = 0.4 + 0.06 * max(map(len, labels[:top]))
    figure.legend(
        loc="outside upper center", ncols=max(1, min(4, int(COLUMN / entry))),
        title=f"{counted(left, 'rarer label')} left out" if left > 0 else None, title_fontsize=6,
    )  # fmt: skip
    return figure
