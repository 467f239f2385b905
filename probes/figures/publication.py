"""A figure with the words, the font and the size that a paper needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font_names
from matplotlib.legend import Legend
from matplotlib.text import Text

from mtl.probes.figures.style import FONT_SIZE

POINTS = 72
"""Points in an inch."""
_SHORTEST = 6
"""The fewest letters of a line, however wide a text is."""
_WIDE, _HIGH = 0.85, 0.6
"""Shares of a panel's width and height for lines of text beside it; ticks and legends take the rest."""


@dataclass(frozen=True)
class Publication:
    """Changes to a finished figure; the default changes nothing."""

    title: str = ""
    """The title above the figure."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What is printed instead of words in the figure: `{pos: POS tagging, layer: Schicht}`."""
    size: tuple[float | int, ...] = ()
    """Width and height in inches; with a width alone, the figure keeps its shape."""
    font: str = ""
    """The name of an installed font family."""
    font_size: float | int | None = None
    """The size of ordinary letters, in points; other sizes are scaled by the same factor."""


def publish(figure: Figure, publication: Publication) -> Figure:
    """Change the figure, and return it.

    Names are replaced as whole words, longer ones first, each place once. Texts that are then too wide are
    broken into shorter lines, and the figure becomes higher by as much, unless its height is given. Raises
    `ValueError` for a font that is not installed, and for sizes that are not above 0.
    """
    _check(publication)
    renderer = _renderer(figure)
    before = {text: _length(text, renderer) for text, _ in _with_places(figure)}
    if publication.size:
        width, *given = publication.size
        height = given[0] if given else width * figure.get_figheight() / figure.get_figwidth()
        figure.set_size_inches(width, height)
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
    grown = _fit(figure, before)
    if publication.title:
        grown += 1.6 * (FONT_SIZE + 1) * scale / POINTS
    if len(publication.size) < 2:
        figure.set_figheight(figure.get_figheight() + grown)
    return figure


def names_not_in(figure: Figure, names: Iterable[str]) -> list[str]:
    """The names that do not occur in a figure; to be asked before `publish` replaces them."""
    ticks = [axis.get_ticklabels() for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    texts = [text.get_text() for text in chain(figure.findobj(Text), *ticks)]
    return [name for name in names if all(_renamed(text, {name: ""}) == text for text in texts)]


def _fit(figure: Figure, before: Mapping[Text, float]) -> float:
    """Break texts that are wider than their place, and return the inches by which the figure grows.

    A text may always be as long as it was `before`, in pixels.
    """
    renderer = _renderer(figure)
    grown = 0.0
    for legend in figure.findobj(Legend):
        low = legend.get_window_extent(renderer).height
        title, wide = legend.get_title(), partial(_wide, legend, renderer)
        above = title.get_text()
        title.set_text("")
        _narrow(legend.get_texts(), wide, figure.bbox.width)
        title.set_text(above)
        _narrow([title], wide, figure.bbox.width)
        grown += legend.get_window_extent(renderer).height - low
    for text, most in _with_places(figure):
        low = text.get_window_extent(renderer).height
        _narrow([text], partial(_length, text, renderer), max(most, before.get(text, 0.0)))
        if not text.get_rotation() % 180:
            grown += text.get_window_extent(renderer).height - low
    return float(grown) / figure.dpi


def _renderer(figure: Figure) -> RendererAgg:
    """A renderer, to measure texts of a figure; the figure keeps its canvas."""
    canvas = figure.canvas
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.set_canvas(canvas)
    return renderer


def _wide(legend: Legend, renderer: RendererAgg) -> float:
    """The width of a legend, in pixels."""
    return float(legend.get_window_extent(renderer).width)


def _length(text: Text, renderer: RendererAgg) -> float:
    """The length of a text's lines, in pixels."""
    box = text.get_window_extent(renderer)
    return float(box.height if text.get_rotation() % 180 else box.width)


def _with_places(figure: Figure) -> Iterator[tuple[Text, float]]:
    """The texts beside plots, and how long their lines may be, in pixels."""
    width, height = figure.bbox.size
    yield from ((text, width) for text in figure.texts if not text.get_rotation() % 180)
    for axes in figure.axes:
        spec = axes.get_subplotspec()
        rows, columns = (1, 1) if spec is None else spec.get_gridspec().get_geometry()
        yield from ((text, _WIDE * width / columns) for text in (axes.title, axes.xaxis.label))
        yield axes.yaxis.label, _HIGH * height / rows


def _narrow(texts: Sequence[Text], width: Callable[[], float], most: float) -> None:
    """Break texts into shorter and shorter lines, as long as `width` is above `most`."""
    whole = [text.get_text() for text in texts]
    letters = max((len(line) for text in whole for line in text.split("\n")), default=0)
    while letters > _SHORTEST and width() > most:
        letters -= 1
        for text, written in zip(texts, whole, strict=True):
            text.set_text("\n".join(_broken(line, letters) for line in written.split("\n")))


def _broken(text: str, letters: int) -> str:
    """A text in lines of at most this many letters, broken after blanks and plus signs."""
    lines = [""]
    for piece in re.findall(r"[^ +]+[ +]*|[ +]+", text):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > letters:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip(" ") for line in lines)


def _entitle(figure: Figure, title: str) -> None:
    """Put a title above everything: that of the upper legend, if there is one, since both have one place."""
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
    if len(publication.size) > 2 or min(publication.size, default=1) <= 0:
        raise ValueError(
            f"size {list(publication.size)}: use a width, or a width and a height, in inches above 0"
        )
    if publication.font_size is not None and publication.font_size <= 0:
        raise ValueError(f"font_size {publication.font_size:g}: use points above 0")


def _rename_ticks(axes: Axes, names: Mapping[str, str]) -> Iterator[Text]:
    """Rename tick labels, which are made again whenever the figure is drawn, and yield them."""
    for axis in (axes.xaxis, axes.yaxis):
        before = [label.get_text() for label in axis.get_ticklabels()]
        after = [_renamed(text, names) for text in before]
        if after != before:
            axis.set_ticks(axis.get_ticklocs(), after)
        yield from axis.get_ticklabels(which="both")


def _renamed(text: str, names: Mapping[str, str]) -> str:
    if not names:
        return text
    in_one_line = {" ".join(name.split()): new for name, new in names.items()}
    longest = sorted(in_one_line, key=len, reverse=True)
    patterns = (r"\s+".join(map(re.escape, name.split(" "))) for name in longest)
    return re.sub(
        rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)", lambda of: in_one_line[" ".join(of.group().split())], text
    )
