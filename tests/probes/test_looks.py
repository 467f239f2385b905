"""The look of a setup and of a task follows its name, in every figure."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from mtl.probes.figures.scores import heads_kept, learning_curves, prediction_dots
from mtl.probes.figures.style import LOOKS, looks_of
from mtl.probes.tables.table_files import by_catalogue, tasks_in
from mtl.tasks.catalogue import in_order_of_catalogue

SETUPS = (
    "STL", "STL, dynamic", "STL, static", "MTL-5", "MTL-5, dynamic", "MTL-5, dynamic, a mask per task",
    "MTL-2", "MTL-2, dynamic", "MTL-2 pos+dep", "MTL-5, penalty 0.1",
)  # fmt: skip
METRICS = {"pos": "accuracy", "ner": "f1", "dep": "las"}


NAMES = st.sampled_from(SETUPS) | st.text("ab, ", min_size=1, max_size=3)


@given(st.lists(NAMES, unique=True, max_size=len(LOOKS)))
def test_different_names_look_different_whatever_their_order(names):
    looks = looks_of(names)
    assert list(looks) == names
    assert len({(look.colour, look.shape) for look in looks.values()}) == len(names)
    assert looks_of(names[::-1]) == looks


@given(st.sets(NAMES, max_size=30), st.data())
def test_a_name_looks_the_same_in_any_subset(names, data):
    """Unless it is numbered: two of them have one look by themselves, and the legend says so."""
    looks = looks_of(sorted(names))
    alone = {name: looks_of([name])[name] for name in names}
    clashes = {name for name in names if list(alone.values()).count(alone[name]) > 1}
    assert {name for name, look in looks.items() if look.number} == clashes
    subset = data.draw(st.sets(st.sampled_from(sorted(names)))) if names else set()
    of_subset = looks_of(subset)
    for name in subset - clashes:
        assert of_subset[name] == looks[name] == alone[name]
    for name in clashes:
        alike = sorted(
            (other for other in names if alone[other] == alone[name]), key=lambda of: looks[of].number
        )
        assert [looks[other].number for other in alike] == list(range(1, len(alike) + 1))
        assert replace(looks[alike[0]], number=0) == alone[name]
    assert {name: looks_of([name], names)[name] for name in names} == looks


def test_a_legend_numbers_names_that_would_look_alike():
    figure = learning_curves(histories(["MTL-3", "MTL-5", "STL"]), METRICS)
    assert [*colours_in_legend(figure)] == ["MTL-3 (1)", "MTL-5 (2)", "STL"]


def test_plain_setups_never_share_a_look():
    plain = SETUPS[:8]
    assert len({looks_of([name])[name] for name in plain}) == len(plain)


def colours_in_legend(figure):
    (legend,) = figure.legends
    lines = zip(legend.get_texts(), legend.legend_handles, strict=True)
    return {text.get_text(): to_hex(line.get_color()).upper() for text, line in lines}


def histories(setups):
    rows = [(setup, task, 1, at, 50.0 + at) for setup in setups for task in ("dep", "pos") for at in (1, 2)]
    return pl.DataFrame(rows, ["setup", "task", "run", "update", "score"], orient="row")


@pytest.mark.parametrize("order", [SETUPS[:4], SETUPS[3::-1], SETUPS[2:4]])
def test_one_setup_has_one_colour_in_every_figure_in_any_order(order):
    expected = {name: look.colour for name, look in looks_of(SETUPS[:4]).items() if name in order}
    kept = pl.DataFrame(
        {
            "task": "dep", "setup": order, "setting": None, "seed": 1, "run": order, "kept": 3, "score": 4.0,
        }
    ).cast({"setting": pl.String})  # fmt: skip
    predicted = pl.DataFrame({"setup": order, "task": "dep", "measure": "importance", "spearman": 0.5})
    values = ("low", "high", "within_layers", "within_low", "within_high")
    predicted = predicted.with_columns(pl.lit(0.1).alias(name) for name in values)
    figures = (
        learning_curves(histories(order), METRICS), heads_kept(kept, 12, METRICS),
        prediction_dots(predicted),
    )  # fmt: skip
    for figure in figures:
        assert expected.items() <= colours_in_legend(figure).items()


def test_panels_and_rows_are_in_the_catalogues_order():
    figure = learning_curves(histories(["STL"]), METRICS)
    assert [axes.get_title() for axes in figure.axes] == ["pos", "dep"]
    assert in_order_of_catalogue(["srl", "pos", "dep", "own", "ner+dep"]) == (
        "pos", "ner+dep", "dep", "srl", "own",
    )  # fmt: skip
    table = pl.DataFrame({"task": ["dep", "pos", "dep"], "row": [1, 2, 3]})
    assert by_catalogue(table)["row"].to_list() == [2, 1, 3]
    assert tasks_in(table) == ["pos", "dep"]
    assert by_catalogue(table.clear()).is_empty()
