"""Figures as parts of the page."""

from __future__ import annotations

import re
from urllib.parse import quote

from markupsafe import Markup
from matplotlib.figure import Figure

from mtl.probes.figures.style import render

NOTHING_DRAWN = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
AS_THEY_ARE = " <>/:;=,'()"
"""What a quoted attribute and a data address may both contain; `#`, `%`, `&` and `"` end one of them."""


def embedded(figure: Figure, description: str) -> Markup:
    """The figure as an image of its own, so that its ids and styles do not clash with those of the page."""
    packed = quote(compact(render(figure, "svg").decode()), safe=AS_THEY_ARE)
    return Markup('<img class="figure" alt="{}" src="data:image/svg+xml,{}">').format(
        description, Markup(packed)
    )


def compact(svg: str) -> str:
    """The same drawing in two thirds of the characters: places to 0.01 points, no comments, no line breaks.

    Numbers below 1 are scales of letters or opacities, and do not change.
    """
    drawn = re.sub(r"\s*\n\s*", " ", NOTHING_DRAWN.sub("", svg)).replace("> <", "><").strip()
    rounded = re.sub(
        r"\b[1-9]\d*\.\d{3,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), drawn
    )
    return rounded if "'" in rounded else rounded.replace('"', "'")
