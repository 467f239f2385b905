"""Cosines of two tasks' gradients at heads that neither, one or both of them claim."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from mtl.probes.figures.palette import colour_of
from mtl.probes.figures.style import COLOURS, COLUMN, FAINT, INK, new_figure, open_frame, styled
from mtl.probes.stem_cell.statistics.conflict import CLASSES, ConflictByClaims

TWINS = "twins"
NAMES = {"neither": "neither\nclaims it", "one": "one\nclaims it", "both": "both\nclaim it", TWINS: TWINS}


@styled
def conflict_figure(result: ConflictByClaims, twins: pl.DataFrame) -> Figure:
    """A column of dots (a head of a pair each) with its mean, per class of claims; twins at the side.

    `twins`: a column `cosine`, of heads in twin runs; it shows what two decoders for one task have. Below 0
    tasks pull a head apart.
    """
    columns = {name: result.heads.filter(pl.col("claims") == name)["cosine"].to_numpy() for name in CLASSES}
    if not twins.is_empty():
        columns[TWINS] = twins["cosine"].to_numpy()
    figure = new_figure(1.9, COLUMN)
    axes = figure.subplots()
    for place, (name, values) in enumerate(columns.items()):
        if not len(values):
            continue
        aside = 0.5 * (np.random.default_rng(0).random(len(values)) - 0.5)
        colour = colour_of(name, COLOURS[1] if name == TWINS else COLOURS[0])
        axes.plot(place + aside, values, ".", color=FAINT, markersize=1.8, alpha=0.6)
        axes.hlines(values.mean(), place - 0.3, place + 0.3, color=colour, linewidth=1.6)
    axes.axhline(0, color=INK, linewidth=0.4)
    axes.set_xticks(range(len(columns)), [NAMES[name] for name in columns])
    axes.set_ylabel("cosine of gradients")
    open_frame(axes)
    axes.tick_params(axis="x", length=0)
    if np.isfinite(result.difference):
        axes.set_title(
            f"both less one, within layers: {result.difference:+.2f} "
            f"({result.low:+.2f} to {result.high:+.2f}), p {result.p:.2g}",
            fontsize=6.5,
        )
    return figure
