"""What the head explorer lists for a head besides skills."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mtl.probes import heads_table
from mtl.probes.measures.table import MEASURES, Measure
from mtl.probes.report.head_measures import TOP_LABELS, head_measures, skill_titles, value_text
from mtl.probes.sites import Site, sites_of
from tests.probes.worlds import with_kinds

ABLATION = Measure(
    "planted", "score lost without the head", "ablation", unit="points",
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
    return measure["heads"][cell]


def test_a_value_has_its_unit_interval_and_probability():
    companions = {"planted_low": 0.4, "planted_high": 3.9, "planted_q": 0.012}
    assert value_text(ABLATION, 2.1, companions) == "2.1 points [0.4, 3.9], q 0.012"
    assert value_text(ABLATION, -0.5, {}) == "\N{MINUS SIGN}0.5 points"
    assert value_text(ABLATION, None, dict.fromkeys(companions)) == "–, q –"
    share = Measure("share", "", "probes", companions=("share_se",))
    assert value_text(share, 0.123, {"share_se": 0.01}) == "12.3 %, se 1.0"
    assert (
        value_text(Measure("cosine", "", "training", unit="number"), -0.01234, {}) == "\N{MINUS SIGN}0.0123"
    )


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
    assert of_head(listed, "mean attention", 4) == [["dep", "", "", "40.0 %"], ["pos", "", "50.0 %", ""]]
    assert of_head(listed, "words that attend most to the rarest", 4) == [["", "", "41.0 %"]]
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
        ["dep", "b", "50.0 % (10.0)"], ["dep", "c", "40.0 % (10.0)"], ["dep", "d", "30.0 % (10.0)"],
    ]  # fmt: skip


def test_the_last_epoch_is_shown():
    epochs = [
        table("gradient_conflict", "", ["pos-dep"], np.full((1, 2, 3), cosine), choice=f"epoch {epoch}")
        for epoch, cosine in ((1, 0.5), (2, -0.25))
    ]
    listed = head_measures(pl.concat(epochs), SITES, HEADS)
    assert of_head(listed, "cosine", 5) == [["", "pos-dep", "\N{MINUS SIGN}0.25"]]


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
        ["dep", "seed 1", "3.0 points [2.0, 4.5], q 0.030"],
        ["dep", "seed 2", "4.0 points [3.0, 5.5], q 0.030"],
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
    assert of_head(listed, "score lost", 2) == [["dep", "seed 1", "3.0 points"]]


@pytest.mark.parametrize("place", [0, 4, 11, 17])
def test_measures_of_three_kinds_stay_with_their_heads(place):
    value = np.random.default_rng(0).random((1, 6, 3))
    heads = with_kinds(table("confidence", "pos", [""], value))
    listed = head_measures(heads, sites_of(heads), HEADS)
    assert listed[0]["heads"][place] == [["pos", "", f"{100 * value.ravel()[place]:.1f} %"]]
