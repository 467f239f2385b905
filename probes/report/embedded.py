"""Figures inside of the page."""

from __future__ import annotations

import base64

from markupsafe import Markup
from matplotlib.figure import Figure

from mtl.probes.figures.style import render


def embedded(figure: Figure, description: str) -> Markup:
    """The figure as an image of its own, so that its ids and styles do not meet those of the page."""
    packed = base64.b64encode(render(figure, "svg")).decode()
    return Markup('<img class="figure" alt="{}" src="data:image/svg+xml;base64,{}">').format(
        description, packed
    )
