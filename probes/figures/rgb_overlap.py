"""The paper's picture of three masks in one: a channel of colour for each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mtl.probes.figures.style import COLUMN, INK, cell_inches, head_axes, new_figure, styled
from mtl.probes.sites import Site


def rgb_image(gates: Float[np.ndarray, "3 site head"]) -> UInt8[np.ndarray, "site head 3"]:
    """Colours of heads, channel c 255 (1 - gate of mask c): black is used by all three, white by none."""
    return np.moveaxis(np.rint(255 * (1 - np.clip(gates, 0, 1))), 0, -1).astype(np.uint8)


@styled
def rgb_overlap(
    gates: Float[np.ndarray, "3 site head"], sites: Sequence[Site], names: Sequence[str]
) -> Figure:
    """The masks of three runs or of three tasks, and which of them each pure colour stands for."""
    _, layers, heads = gates.shape
    height = cell_inches(layers, heads, COLUMN - 0.35)
    short = max(map(len, names)) <= 5
    below = 0.4 if short else 0.55
    figure = new_figure(height + 0.35 + below)
    picture, legend = figure.subplots(2, 1, height_ratios=[height + 0.3, below])
    picture.imshow(rgb_image(gates), aspect="auto", interpolation="nearest")
    head_axes(picture, sites, heads)
    _explain(legend, names, short)
    return figure


def _explain(axes: Axes, names: Sequence[str], short: bool) -> None:
    """A swatch for each set of masks; long names are numbered."""
    labels = names if short else ("1", "2", "3")
    sets = [subset for size in range(4) for subset in itertools.combinations(range(3), size)]
    for place, subset in enumerate(sets):
        column, row = place % 4, place // 4
        used = np.isin(np.arange(3), subset).astype(np.float64)
        colour = rgb_image(used[:, None, None])[0, 0] / 255
        text = {0: "none", 3: "all"}.get(len(subset), "+".join(labels[mask] for mask in subset))
        axes.add_patch(Rectangle((column, -row), 0.16, 0.6, facecolor=colour, edgecolor=INK, linewidth=0.4))
        axes.text(column + 0.22, 0.28 - row, text, va="center", fontsize=6.5)
    if not short:
        numbered = ", ".join(f"{number}: {name}" for number, name in zip(labels, names, strict=True))
        axes.text(0, -1.75, numbered, va="center", fontsize=6.5)
    axes.set_xlim(0, 4)
    axes.set_ylim(-1.2 if short else -2.1, 0.7)
    axes.axis("off")
