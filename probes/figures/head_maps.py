"""Values of heads as maps and matrices: worth by task and setup, labels, correlations of masks."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtl.probes.appearance import ordered
from mtl.probes.figures.style import (
    COLUMN,
    INK,
    cell_inches,
    colour_bar,
    figure_of,
    grid_size,
    head_axes,
    is_dark,
    looks_of,
    new_figure,
    open_frame,
    site_ticks,
    styled,
    wrapped,
)
from mtl.probes.sites import KEYS, grid, kind_starts
from mtl.probes.statistics.head_values import SIGNED
from mtl.probes.tables.heads_table import FEWEST_ITEMS, best_of_labels, label_name
from mtl.probes.tables.table_files import tasks_in
from mtl.tasks.in_words import counted

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


MAP = "RdBu_r"
"""Diverging: white is a correlation of zero, blue below, red above."""
KEY = 1.5
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
    # The key below the matrix is as wide as its text, however few names there are.
    width = max(cell * len(names), KEY) + longest + 0.2
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


LABEL_MAP_WIDTH = 2 * COLUMN
"""Width of the map in inches: the labels have to fit into its cells."""
LABEL_LETTER = 0.6
"""Width of a letter as a share of its size."""
LABEL_SIZES = (3.0, 6.0)
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
    across = LABEL_MAP_WIDTH - 0.7
    figure = new_figure(
        max(cell_inches(len(sites), 2 * heads, across), 0.16 * len(sites)) + 0.9, LABEL_MAP_WIDTH
    )
    axes, below = figure.subplots(2, 1, height_ratios=[30, 1])
    image = axes.imshow(
        np.ma.masked_invalid(skill), cmap="Blues", vmin=0, vmax=100, aspect="auto", interpolation="nearest"
    )
    dark = is_dark(image.cmap(image.norm(np.nan_to_num(skill)))[..., :3])
    row = {(site.attention, site.layer): number for number, site in enumerate(sites)}
    for attention, layer, head, label in best.select(*KEYS, "label").iter_rows():
        place = row[attention, layer]
        size = 72 * (across / heads - 0.03) / (LABEL_LETTER * max(len(label), 1))
        axes.text(
            head, place, label, ha="center", va="center", fontsize=float(np.clip(size, *LABEL_SIZES)),
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
