"""What the head explorer lists for a head besides skills."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mtl.features import Measure
from mtl.probes.measures.groups import MEASURES
from mtl.probes.report.head_maps import TOP_LABELS, head_measures, skill_titles
from mtl.probes.sites import Site, sites_of
from mtl.probes.tables import heads_table
from tests.probes.worlds import with_kinds

ABLATION = Measure(
    "planted", "score lost without the head", unit="points",
    companions=("planted_low", "planted_high", "planted_q"),
)  # fmt: skip
SITES = (Site("self", 0), Site("self", 1))
HEADS = 3


def table(measure, task, labels, value, regime="stl", seed=1, choice=""):
    """Rows of a measure (label, layer, head) of one run."""
    count = np.full(len(labels), 40)
    rows = heads_table.rows(measure, task, labels, np.asarray(value, dtype=float), count, choice)
    names = {"regime": regime, "run": f"{task or 'all'}-{regime}-{seed}", "seed": seed}
    return rows.with_columns(*(pl.lit(name).alias(key) for key, name in names.items()))


def of_head(listed, title, cell):
    """The rows of a measure for a head."""
    (measure,) = [measure for measure in listed if measure["title"].startswith(title)]
    return [[*measure["rows"][number], *values] for number, *values in measure["heads"][cell]]


@pytest.mark.parametrize(
    ("unit", "value", "shown"),
    [
        ("share", 0.12345, 12.3), ("points", -0.04, 0.0), ("points", 2.25, 2.2), ("points", 1234.56, 1234.6),
        ("number", -0.012345, -0.0123), ("number", 1.23456e-7, 1.23e-7), ("number", 98765.0, 98800.0),
    ],
)  # fmt: skip
def test_numbers_have_the_digits_that_are_shown(unit, value, shown):
    measure = Measure("planted", "", unit=unit, companions=("planted_se",))
    heads = [table(name, "pos", [""], np.full((1, 2, 3), value)) for name in measure.names]
    (listed,) = head_measures(pl.concat(heads), SITES, HEADS, (measure,))
    assert repr(of_head([listed], "", 0)) == repr([["pos", "seed 1", [shown, shown]]])  # no negative zero
    assert (listed["unit"], listed["beside"]) == (unit, ["se"])


@pytest.mark.parametrize(
    ("p", "shown"), [(0.01249, 0.012), (0.9999, 1.0), (0.00096, 0.001), (0.000449, 4e-4), (3e-13, 3e-13)]
)
def test_probabilities_keep_their_order_of_magnitude(p, shown):
    heads = [table("planted", "pos", [""], np.ones((1, 2, 3)))]
    heads.append(table("planted_q", "pos", [""], np.full((1, 2, 3), p)))
    listed = head_measures(pl.concat(heads), SITES, HEADS, (ABLATION,))
    assert of_head(listed, "score", 3) == [["pos", "seed 1", [1.0, None, None, shown]]]


def test_names_of_a_measure_include_its_companions():
    assert ABLATION.names == ("planted", "planted_low", "planted_high", "planted_q")


def test_every_measure_is_listed_for_each_task_and_regime():
    value = np.arange(6.0).reshape(1, 2, 3) / 10
    heads = pl.concat(
        [
            table("confidence", "pos", [""], value),
            table("confidence", "pos", [""], value + 0.2, seed=2),
            table("confidence", "dep", [""], value, regime="joint"),
            table("rare_words", "", [""], value + 0.01),
            table("attention", "dep", ["det"], value),  # a skill: listed by label, not here
        ]
    )
    listed = head_measures(heads, SITES, HEADS)
    titles = [measure.title for measure in MEASURES]
    assert [titles.index(measure["title"]) for measure in listed] == [2, 6]
    assert listed[0]["regimes"] == ["stl", "joint"]
    assert of_head(listed, "mean attention", 4) == [["dep", "", None, 40.0], ["pos", "", 50.0, None]]
    assert of_head(listed, "words that attend most to the rarest", 4) == [["", "", 41.0]]
    assert skill_titles(heads) == [
        "dep: arcs and arguments met by the most attended word; chance: best fixed offset"
    ]


def test_chance_stands_beside_the_value_and_ranks_the_labels():
    labels = ["a", "b", "c", "d"]
    assert len(labels) == TOP_LABELS + 1
    value = np.array([0.9, 0.5, 0.4, 0.3])[:, None, None] * np.ones((1, 2, 3))
    chance = table("syntactic_offset", "dep", labels, np.array([0.89, 0.1, 0.1, 0.1])[:, None, None])
    chance = chance.with_columns(layer=pl.lit(None, dtype=pl.Int32), head=pl.lit(None, dtype=pl.Int32))
    listed = head_measures(pl.concat([table("syntactic", "dep", labels, value), chance]), SITES, HEADS)
    assert listed[0]["title"] == "arcs of a relation met in one direction; in parentheses: best fixed offset"
    assert of_head(listed, "arcs", 0) == [
        ["dep", "b", [50.0, 10.0]], ["dep", "c", [40.0, 10.0]], ["dep", "d", [30.0, 10.0]],
    ]  # fmt: skip


def test_the_last_epoch_is_shown():
    epochs = [
        table("gradient_conflict", "", ["pos-dep"], np.full((1, 2, 3), cosine), choice=f"epoch {epoch}")
        for epoch, cosine in ((1, 0.5), (2, -0.25))
    ]
    listed = head_measures(pl.concat(epochs), SITES, HEADS)
    assert of_head(listed, "cosine", 5) == [["", "pos-dep", -0.25]]


def test_a_measure_with_companions_has_a_row_for_each_seed():
    value = np.arange(6.0).reshape(1, 2, 3)
    parts = [
        table(name, "dep", [""], value + shift + seed, seed=seed)
        for seed in (1, 2)
        for name, shift in (("planted", 0), ("planted_low", -1), ("planted_high", 1.5))
    ]
    parts += [table("planted_q", "dep", [""], np.full((1, 2, 3), 0.03), seed=seed) for seed in (1, 2)]
    listed = head_measures(pl.concat(parts), SITES, HEADS, (ABLATION,))
    assert of_head(listed, "score lost", 2) == [
        ["dep", "seed 1", [3.0, 2.0, 4.5, 0.03]],
        ["dep", "seed 2", [4.0, 3.0, 5.5, 0.03]],
    ]
    assert head_measures(pl.concat(parts), SITES, HEADS) == []


def test_runs_of_two_setups_with_one_seed_give_their_mean_without_an_interval():
    value = np.arange(6.0).reshape(1, 2, 3)
    parts = [
        table(name, "dep", [""], value + shift + more).with_columns(run=pl.lit(f"{more}"))
        for more in (0, 2)
        for name, shift in (("planted", 0), ("planted_low", -1), ("planted_high", 1.5))
    ]
    listed = head_measures(pl.concat(parts), SITES, HEADS, (ABLATION,))
    assert of_head(listed, "score lost", 2) == [["dep", "seed 1", 3.0]]


@pytest.mark.parametrize("place", [0, 4, 11, 17])
def test_measures_of_three_kinds_stay_with_their_heads(place):
    value = np.random.default_rng(0).random((1, 6, 3))
    heads = with_kinds(table("confidence", "pos", [""], value))
    listed = head_measures(heads, sites_of(heads), HEADS)
    assert of_head(listed, "", place) == [["pos", "", round(100 * value.ravel()[place], 1)]]
