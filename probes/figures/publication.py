"""A figure in the words, the letters and the size that a paper asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font_names
from matplotlib.text import Text

from mtl.probes.figures.style import FONT_SIZE


@dataclass(frozen=True)
class Publication:
    """What is changed of a finished figure; by default nothing."""

    title: str = ""
    """Above the figure."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What is printed instead of a word or words: `{pos: POS tagging, layer: Schicht}`."""
    size: tuple[float | int, float | int] | None = None
    """Width and height in inches."""
    font: str = ""
    """A font family that is installed."""
    font_size: float | int | None = None
    """Of ordinary letters, in points; the others grow and shrink with them."""


def publish(figure: Figure, publication: Publication) -> Figure:
    """The figure itself, changed.

    Names are replaced as whole words, longer ones first, each place once. Raises `ValueError` for a font that
    is not installed, and for sizes that are not above 0.
    """
    _check(publication)
    if publication.size is not None:
        figure.set_size_inches(*publication.size)
    if publication.title:
        _entitle(figure, publication.title)
    at_ticks = {label for axes in figure.findobj(Axes) for label in _rename_ticks(axes, publication.names)}
    scale = 1.0 if publication.font_size is None else publication.font_size / FONT_SIZE
    for text in figure.findobj(Text):
        if text not in at_ticks:
            text.set_text(_renamed(text.get_text(), publication.names))
        text.set_fontsize(text.get_fontproperties().get_size_in_points() * scale)
        if publication.font:
            text.set_fontfamily(publication.font)
    return figure


def _entitle(figure: Figure, title: str) -> None:
    """Above everything; legends above the axes would share the place of a title that is not theirs."""
    size = FONT_SIZE + 1
    above = [legend for legend in figure.legends if getattr(legend, "_outside_loc", None) == "upper"]
    if above:
        above[0].set_title(title, prop=FontProperties(size=size))
    else:
        figure.suptitle(title, fontsize=size)


def _check(publication: Publication) -> None:
    if publication.font:
        try:
            findfont(FontProperties(family=publication.font), fallback_to_default=False)
        except ValueError as error:
            there = ", ".join(sorted(get_font_names())[:8])
            raise ValueError(f"no font {publication.font!r} is installed; there are {there}, …") from error
    if publication.size is not None and min(publication.size) <= 0:
        raise ValueError(f"size {list(publication.size)}: use a width and a height in inches above 0")
    if publication.font_size is not None and publication.font_size <= 0:
        raise ValueError(f"font_size {publication.font_size:g}: use points above 0")


def _rename_ticks(axes: Axes, names: Mapping[str, str]) -> Iterator[Text]:
    """Rename what is written at ticks, which is made anew whenever the figure is drawn; yields it."""
    for axis in (axes.xaxis, axes.yaxis):
        before = [label.get_text() for label in axis.get_ticklabels()]
        after = [_renamed(text, names) for text in before]
        if after != before:
            axis.set_ticks(axis.get_ticklocs(), after)
        yield from axis.get_ticklabels(which="both")


def _renamed(text: str, names: Mapping[str, str]) -> str:
    if not names:
        return text
    longest = sorted(names, key=len, reverse=True)
    return re.sub(
        rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)", lambda of: names[of.group()], text
    )
