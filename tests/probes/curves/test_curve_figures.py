"""Figures of pruning curves fit, have the chosen colours, and show what survives."""

from __future__ import annotations

import polars as pl
import pytest

from mtl.curves.feature import FEATURE
from mtl.probes.curves.curve_table import surviving_kinds
from mtl.probes.curves.figures import kind_curves, pruning_curves
from tests.probes.curves.figure_makers import MAKERS, curve_rows
from tests.probes.figure_makers import LONG_TASKS, SCORES, TASKS, made_table
from tests.probes.palettes import require_palette
from tests.probes.test_figures_fit import faults


def test_every_figure_is_made_here() -> None:
    pieces = [piece.figures for piece in FEATURE.evidence.values()]
    assert {name for rows in (FEATURE.figures, *pieces) for name in rows} == set(MAKERS)


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
    require_palette(name, MAKERS[name], TASKS)


def test_bands_are_explained_where_there_are_any():
    columns = ("task", "by", "trained_epochs", "share", "score", "draw", "run")
    rows = [
        ("pos", "random", 0, share, 90.0 * share - draw, draw, "run")
        for share in (0.5, 1.0)
        for draw in (0, 1)
    ]
    for few, said in ((rows, True), ([row for row in rows if not row[5]], False)):
        figure = pruning_curves(made_table(few, *columns), SCORES)
        assert ("bands" in figure.get_supxlabel()) is said


def test_heads_of_each_kind_along_a_pruning_curve():
    survival = surviving_kinds(*curve_rows())
    assert dict(survival.select("attention", "at_start").unique().iter_rows()) == {
        "encoder": 4, "decoder": 4, "cross": 2
    }  # fmt: skip
    left = {
        (kind, kept): round(share * heads)
        for kind, kept, share, heads in survival.select(
            "attention", "kept", "surviving", "at_start"
        ).iter_rows()
    }
    assert [left["decoder", kept] for kept in (10, 6, 3, 0)] == [4, 1, 0, 0]
    assert [left["encoder", kept] for kept in (10, 6, 3, 0)] == [4, 3, 1, 0]
    assert [left["cross", kept] for kept in (10, 6, 3, 0)] == [2, 2, 2, 0]
    figure = kind_curves(survival.with_columns(run=pl.lit("a")))
    drawn = {line.get_label(): line for line in figure.legends[0].get_lines()}
    assert list(drawn) == ["encoder (4 heads)", "decoder (4 heads)", "cross (2 heads)"]
    lines = figure.axes[0].lines[1:]  # after the dotted one
    assert [list(line.get_ydata()) for line in lines] == [
        [100, 75, 25, 0], [100, 25, 0, 0], [100, 100, 100, 0]
    ]  # fmt: skip
