"""Colours and order of names that a user chooses, in every figure."""

from __future__ import annotations

import pytest

from mtl.probes.appearance import Appearance, appearing, ordered
from mtl.probes.figures.style import COLOURS, check_appearance, colour_of
from tests.probes.figure_makers import MAKERS
from tests.probes.palettes import require_palette

TASKS = ("pos", "ner", "dep")


@pytest.mark.parametrize("name", MAKERS)
def test_no_figure_has_another_colour_than_those_of_the_chosen_palette(name: str) -> None:
    require_palette(name, MAKERS[name], TASKS)


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
