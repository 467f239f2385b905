"""Colours and order of names that a user chooses, in every figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from matplotlib.artist import Artist
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.probes.appearance import Appearance, appearing, ordered
from mtl.probes.figures.palette import check_appearance, colour_of
from mtl.probes.figures.style import COLOURS
from tests.probes.figure_makers import MAKERS
from tests.probes.stem_cell.figure_makers import MAKERS as OF_LABORATORY

Maker = Callable[[tuple[str, ...]], Figure]
TASKS = ("pos", "ner", "dep")
NO_INK = [colour for colour in COLOURS if colour != "#000000"]


def colours_in(figure: Figure) -> set[str]:
    return {to_hex(colour).upper() for artist in figure.findobj() for colour in _colours(artist)}


def _colours(artist: Artist) -> Iterator[object]:
    if isinstance(artist, Line2D):
        yield artist.get_color()
    if isinstance(artist, LineCollection):
        yield from artist.get_colors()


@pytest.mark.parametrize("name", [*MAKERS, *OF_LABORATORY])
def test_no_figure_has_another_colour_than_those_of_the_chosen_palette(name: str) -> None:
    maker: Maker = {**MAKERS, **OF_LABORATORY}[name]
    with appearing(Appearance(palette="Dark2")) as shown:
        used = colours_in(maker(TASKS)) & set(NO_INK)
    assert not used
    assert bool(colours_in(maker(TASKS)) & set(NO_INK)) == (bool(shown.coloured) and name != "rgb")


@pytest.mark.parametrize("name", ["heads-kept", "learning-curves", "heads", "prediction", "masks", "gates"])
def test_panels_come_in_the_chosen_order(name: str) -> None:
    with appearing(Appearance(order=("dep", "pos"))):
        titles = [axes.get_title() for axes in MAKERS[name](TASKS).axes]
    found = dict.fromkeys(task for title in titles for task in TASKS if title.startswith(task))
    assert list(found) == ["dep", "pos", "ner"]


def test_a_name_has_its_colour_whatever_the_palette() -> None:
    with appearing(Appearance("Dark2", {"STL": "k"}, ())):
        assert colour_of("STL", COLOURS[0]) == "#000000"
        assert colour_of("MTL", COLOURS[0]) == "#1b9e77"
        assert colour_of("grey", "#123456") == "#123456"
    assert colour_of("STL", COLOURS[0]) == COLOURS[0]


def test_chosen_names_come_first_and_what_had_no_effect_is_said() -> None:
    with appearing(Appearance(colours={"a": "k"}, order=("c", "x", "a"))) as shown:
        assert ordered("abc") == ["c", "a", "b"]
    assert list(shown.faults("this")) == [
        "colours: this has no 'a'; it has no colours of names",
        "order: this has no 'x'; it has a, b, c",
    ]
    assert ordered("abca") == ["a", "b", "c"]


def test_colours_are_checked() -> None:
    check_appearance(Appearance("okabe_ito", {"pos": "C1", "dep": "#0072B2"}, ("pos",)))
    with pytest.raises(ValueError, match="no colour 'blu'"):
        check_appearance(Appearance(colours={"pos": "blu"}))
