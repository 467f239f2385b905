"""Nothing of a figure of the laboratory lies outside of its canvas, and no text on another."""

from __future__ import annotations

import pytest

from mtl.stem_cell.feature import EVIDENCE
from tests.probes.figure_makers import LONG_TASKS, TASKS
from tests.probes.palettes import require_palette
from tests.probes.stem_cell.figure_makers import MAKERS
from tests.probes.test_figures_fit import faults


def test_every_figure_is_made_here() -> None:
    assert {name for piece in EVIDENCE.values() for name in piece.figures} <= set(MAKERS)


@pytest.mark.parametrize("count", [3, *(pytest.param(many, marks=pytest.mark.slow) for many in (1, 2, 5, 9))])
@pytest.mark.parametrize("name", MAKERS)
def test_a_figure_fits(name: str, count: int) -> None:
    assert faults(MAKERS[name](TASKS[:count])) == []


@pytest.mark.parametrize("count", [2, *(pytest.param(many, marks=pytest.mark.slow) for many in (1, 3))])
@pytest.mark.parametrize("name", MAKERS)
def test_a_figure_fits_with_long_names_of_tasks(name: str, count: int) -> None:
    assert faults(MAKERS[name](LONG_TASKS[:count])) == []


@pytest.mark.parametrize("name", MAKERS)
def test_no_figure_has_another_colour_than_those_of_the_chosen_palette(name: str) -> None:
    require_palette(name, MAKERS[name], TASKS[:3])
