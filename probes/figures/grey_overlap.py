"""The grey picture of He & Choi 2021: how often each head is used, over tasks and runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.figure import Figure

from mtl.probes.figures.style import (
    COLUMN,
    MOSTLY_FORCED,
    cell_inches,
    colour_bar,
    head_axes,
    new_figure,
    strike,
    styled,
)
from mtl.probes.sites import Site
from mtl.tasks.in_words import counted


@styled
def grey_overlap(
    gates: Float[np.ndarray, "mask site head"],
    sites: Sequence[Site],
    forced: tuple[Bool[np.ndarray, "site head"], Bool[np.ndarray, "site head"]] | None = None,
) -> Figure:
    """The mean gate over all masks: a black head is used by all of them, a white one by none.

    `forced` heads, open and shut (`mtl.probes.statistics.masks.mostly_forced`), are struck through.
    """
    _, layers, heads = gates.shape
    height = cell_inches(layers, heads, COLUMN - 0.35)
    struck = forced is not None and any(each.any() for each in forced)
    figure = new_figure(height + 0.8 + 0.25 * struck)
    axes, below = figure.subplots(2, 1, height_ratios=[height, 0.06])
    image = axes.imshow(gates.mean(0), cmap="gray_r", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    head_axes(axes, sites, heads)
    key = f"mean gate over {counted(len(gates), 'mask')}"
    if forced is not None and struck:
        strike(axes, forced[0], forced[1], gates.mean(0) > 0.5)
        key = f"{key}\n{MOSTLY_FORCED}"
    colour_bar(figure, image, key, cax=below, orientation="horizontal")
    return figure
