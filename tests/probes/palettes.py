"""Whether a figure keeps to a palette."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from matplotlib.artist import Artist
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.probes.appearance import Appearance, appearing
from mtl.probes.figures.style import COLOURS

Maker = Callable[[tuple[str, ...]], Figure]
_NO_INK = {colour for colour in COLOURS if colour != "#000000"}


def require_palette(name: str, maker: Maker, tasks: tuple[str, ...]) -> None:
    """Fail if the figure has one of the usual colours where another palette is chosen."""
    with appearing(Appearance(palette="Dark2")) as shown:
        assert not _colours_in(maker(tasks)) & _NO_INK
    assert bool(_colours_in(maker(tasks)) & _NO_INK) == (bool(shown.coloured) and name != "rgb")


def _colours_in(figure: Figure) -> set[str]:
    return {to_hex(colour).upper() for artist in figure.findobj() for colour in _colours(artist)}


def _colours(artist: Artist) -> Iterator[object]:
    if isinstance(artist, Line2D):
        yield artist.get_color()
    if isinstance(artist, LineCollection):
        yield from artist.get_colors()
