"""Overlap of heads' mixing vectors, per layer and by how many tasks claim the heads."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtl.probes.figures.looks import looks_of
from mtl.probes.figures.palette import colour_of
from mtl.probes.figures.style import COLUMN, FAINT, INK, LOOKS, new_figure, open_frame, site_ticks, styled
from mtl.probes.sites import sites_of
from mtl.probes.stem_cell.statistics.mixing import CLASSES

NAMES = {"none": "no task", "one": "one task", "several": "several tasks"}
"""Of heads claimed by ..."""


@styled
def mixing_figure(tests: pl.DataFrame, layers: pl.DataFrame, shown: str) -> Figure:
    """Above: mean overlap per layer and class in the models `shown`; below: by class, less the layers' means.

    `tests` and `layers` are those of `MixingByClaims` with a column `models`, of which `shown` is a value.
    Bars are intervals over seeds; the number above a mean is its p after Holm.
    """
    figure = new_figure(3.6, COLUMN)
    above, below = figure.subplots(2, 1)
    _layers(above, layers.filter(models=shown))
    groups = list(tests["models"].unique(maintain_order=True))
    looks = looks_of(groups)
    for turn, (group, look) in enumerate(looks.items()):
        aside = 0.2 * (turn - (len(groups) - 1) / 2)
        rows = tests.filter((pl.col("models") == group) & pl.col("above").is_not_null())
        for row in rows.iter_rows(named=True):
            place = CLASSES.index(row["claims"]) + aside
            if row["low"] is not None:
                below.vlines(place, row["low"], row["high"], color=look.colour, linewidth=0.9)
            below.plot([place], [row["above"]], marker=look.shape, color=look.colour, markersize=3.5)
            below.annotate(
                f"p={row['p_holm']:.2g}", (place, row["above"]), (0, 4), textcoords="offset points",
                fontsize=5, rotation="vertical", horizontalalignment="center",
            )  # fmt: skip
    below.axhline(0, color=INK, linewidth=0.5)
    below.set_xticks(range(len(CLASSES)), [NAMES[name] for name in CLASSES])
    below.set_xlim(-0.6, len(CLASSES) - 0.4)
    below.margins(y=0.25)
    below.set_xlabel("heads claimed by")
    below.set_ylabel("overlap, less the layer's mean")
    for axes in (above, below):
        open_frame(axes)
    handles = [look.key(group, 3.5, 0.0) for group, look in looks.items()]
    letters = sum(map(len, groups))
    columns = 3 if letters < 40 else 2 if letters < 60 else 1
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    return figure


def _layers(axes: Axes, layers: pl.DataFrame) -> None:
    sites = sites_of(layers)
    number = {tuple(site): place for place, site in enumerate(sites)}
    for turn, name in enumerate(("all", *CLASSES)):
        rows = layers.filter(claims=name)
        overlap = np.full(len(sites), np.nan)  # a gap where a layer has no such pair
        overlap[[number[place] for place in rows.select("attention", "layer").rows()]] = rows["overlap"]
        label = "all pairs of heads" if name == "all" else f"claimed by {NAMES[name]}"
        colour = colour_of(label, FAINT if name == "all" else LOOKS[turn - 1].colour)
        marker = "" if name == "all" else LOOKS[turn - 1].shape
        axes.plot(overlap, color=colour, marker=marker, markersize=3, linewidth=0.9, label=label)
    axes.set_xticks(*site_ticks(sites, COLUMN, between="\n"))
    axes.set_xlabel("layer")
    axes.set_ylabel("mean overlap")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
