"""The paper's picture of how often each head is used over tasks and runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from mtl.probes.figures.style import COLUMN, cell_inches, head_axes, new_figure, styled
from mtl.probes.sites import Site


@styled
def grey_overlap(gates: Float[np.ndarray, "mask site head"], sites: Sequence[Site]) -> Figure:
    """The mean gate over all masks: black is a head that all of them use, white one that none does."""
    _, layers, heads = gates.shape
    height = cell_inches(layers, heads, COLUMN - 0.35)
    figure = new_figure(height + 0.8)
    axes, below = figure.subplots(2, 1, height_ratios=[height, 0.06])
    image = axes.imshow(gates.mean(0), cmap="gray_r", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    head_axes(axes, sites, heads)
    bar = figure.colorbar(image, cax=below, orientation="horizontal")
    bar.set_label(f"mean gate over {len(gates)} mask{'s' if len(gates) > 1 else ''}")
    bar.outline.set_linewidth(0.5)
    return figure
