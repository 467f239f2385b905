"""Claims and losses on made-up runs: arithmetic by hand, and how often the word is right.
Competition by the claims of several setups: each its own test.
No statement has a negative number of something that is less, lost or scored: the sign is a word.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom

from mtl.probes.statistics.head_values import absent_labels, label_values, skills
from mtl.probes.statistics.masks import final_masks
from mtl.probes.stem_cell.competition import (
    APART,
    DIFFERENCE,
    PRIMARY,
    TOGETHER,
    TOO_FEW,
    by_claims,
    claims,
    compete,
    head_tests,
    losses,
)
from tests.probes import worlds
from tests.probes.closed_testing import closed


@pytest.fixture
def rng():
    return np.random.default_rng(2)


def chances(effect: float, worlds_drawn: int) -> np.ndarray:
    """The p that decides the word of `compete`, in so many worlds."""
    found = []
    for draw in range(worlds_drawn):
        gates, heads = worlds.competition(np.random.default_rng([7, draw]), effect)
        table = losses(claims(final_masks(gates)[0]), skills(heads))
        tests = head_tests(table, 0.95, 199, np.random.default_rng(0))
        found.append(tests.row(by_predicate=pl.col("test") == PRIMARY, named=True)["p"])
    return np.array(found)


@pytest.mark.slow
def test_a_planted_effect_is_found_and_none_is_rejected():
    """Every claim costs a head 1.5 points: contested heads lose some 4.5 of 40, the others some 0.5."""
    planted, none = chances(0.06, 60), chances(0.0, 200)
    assert (planted <= 0.05).mean() >= 0.9
    # A test of level 0.05 has more than this many false positives in one of a thousand such tests.
    assert 0 < (none <= 0.05).sum() <= binom.ppf(0.999, 200, 0.05)


@pytest.mark.slow
def test_losses_that_scatter_more_where_tasks_claim_mislead():
    rng = np.random.default_rng(14)
    p, misses = [], []
    for _ in range(200):
        wish = rng.normal(size=(6, 12)) + rng.normal(size=(6, 1))
        wanted = (wish + rng.normal(size=(5, 6, 12))).reshape(5, -1)
        claimed = (wanted >= np.sort(wanted)[:, [-14]]).sum(0)
        layer, head = (axis.ravel() for axis in np.indices(wish.shape))
        loss = (1 + claimed) * rng.normal(size=72) + rng.normal(size=6)[layer]
        table = pl.DataFrame(
            {"attention": "self", "layer": layer, "head": head, "claims": claimed, "demand": 1.0 * claimed,
             "contested": claimed >= 2, "loss": 0.01 * loss}
        )  # fmt: skip
        tests = {row["test"]: row for row in head_tests(table, 0.95, 199, rng).iter_rows(named=True)}
        p.append(tests[PRIMARY]["p"])
        misses.append(not tests[DIFFERENCE]["low"] <= 0 <= tests[DIFFERENCE]["high"])
    assert np.mean(np.array(p) <= 0.05) <= 0.07 + 0.05
    assert np.mean(misses) <= 0.1 + 0.06


@pytest.mark.slow
def test_what_the_planted_effect_costs():
    lost = {True: [], False: []}
    for draw in range(20):
        gates, heads = worlds.competition(np.random.default_rng([7, draw]), 0.06)
        table = losses(claims(final_masks(gates)[0]), skills(heads))
        for contested in lost:
            lost[contested].append(table.filter(pl.col("contested") == contested)["loss"].mean())
    assert np.mean(lost[True]) == pytest.approx(0.046, abs=0.006)
    assert np.mean(lost[False]) == pytest.approx(0.004, abs=0.006)


@pytest.mark.slow
def test_worlds_without_competition_give_the_same_word():
    """A task that loses on the heads that it claims itself, whoever else does: the word names no cause."""
    words = []
    for draw in range(20):
        gates, heads = worlds.own_heads(np.random.default_rng([9, draw]), 0.06)
        words.append(compete(final_masks(gates)[0], heads, draws=500).verdict.word)
    assert words.count(TOGETHER) >= 18


def test_layers_that_differ_are_not_taken_for_competition(rng):
    """Upper layers are wanted more and lose more, but within layers claims and losses are unrelated."""
    gate = (rng.random((4, 3, 4, 8)) < np.array([0.1, 0.4, 0.7, 0.95])[:, None]).astype(float)
    stl = 0.6 + 0.02 * rng.normal(size=(3, 4, 3, 4, 8))
    joint = stl - 0.05 * np.arange(4)[:, None] + 0.01 * rng.normal(size=stl.shape)
    found = compete(
        final_masks(worlds.gates(gate))[0],
        pl.concat([worlds.heads(stl, "stl"), worlds.heads(joint, "joint")]),
    )
    p = dict(found.head_tests.select("test", "p").iter_rows())
    assert p["Spearman of claims and loss"] < 0.01
    assert p["Spearman of claims and loss within layers"] > 0.05
    assert found.verdict.word == APART


def test_heads_that_only_gain_less_are_said_to(rng):
    gates, heads = worlds.competition(rng, 0.1)
    better = heads.with_columns(
        value=pl.when((pl.col("regime") == "joint") & (pl.col("measure") == "attention"))
        .then(pl.col("value") + 0.3)
        .otherwise("value")
    )
    found = compete(final_masks(gates)[0], better)
    assert found.head_tests["p"].max() < 0.05
    assert found.verdict.word == TOGETHER
    assert "gain less skill; contested ones lose none on average" in found.verdict.reason


def test_the_verdict_says_its_level_and_is_the_same_every_time(rng):
    gates, heads = worlds.competition(rng, 0.1)
    masks, _ = final_masks(gates)
    found, again = (
        compete(masks, heads, level=0.01),
        compete(masks, heads.sample(fraction=1, shuffle=True), level=0.01),
    )
    assert str(found.verdict).startswith(f"{TOGETHER}: heads that more tasks claim lose more of their skill")
    assert "level 0.01" in found.verdict.reason
    assert "99% interval" in found.verdict.reason
    assert "support" not in str(found.verdict)
    assert found.verdict == again.verdict


@pytest.mark.parametrize(
    ("thin", "said"),
    [
        (lambda g, h: (g.filter(pl.col("seed") < 3), h), "masks of 2 seeds"),
        (
            lambda g, h: (g, h.filter((pl.col("regime") != "joint") | (pl.col("seed") == 1))),
            "joint runs of 1 seed",
        ),
        (
            lambda g, h: (g, h.filter((pl.col("regime") != "stl") | (pl.col("task") != "con"))),
            "single-task runs of 0 seeds",
        ),
        (lambda g, h: (g.filter(pl.col("task") == "pos"), h), "needs two"),
        (lambda g, h: (g.with_columns(open=pl.lit(True)), h), "nearly all heads"),
        (lambda g, h: (g.with_columns(open=pl.col("open") & (pl.col("task") == "pos")), h), "claimed by two"),
        (lambda g, h: (g, h.with_columns(value=pl.lit(0.5))), "lose the same"),
    ],
)
def test_too_few_runs_to_say(rng, thin, said):
    gates, heads = thin(*worlds.competition(rng, 0.1))
    found = compete(final_masks(gates)[0], heads)
    assert found.verdict.word == TOO_FEW
    assert said in found.verdict.reason
    assert found.heads.height == worlds.LAYERS * worlds.HEADS


def test_claims_by_hand():
    gate = np.zeros((2, 3, 1, 3))
    gate[0, :, 0, 0], gate[1, :2, 0, 0], gate[0, :1, 0, 1] = 1.0, 0.6, 0.3
    table = claims(final_masks(worlds.gates(gate, tasks=("pos", "dep")))[0])
    assert table["claims"].to_list() == [2, 0, 0]
    assert table["demand"].to_list() == pytest.approx([1.4, 0.1, 0])
    assert table["contested"].to_list() == [True, False, False]


def test_losses_by_hand():
    """Skill is what exceeds chance, weighted by counts (10, 20, 30), averaged over tasks."""
    stl = np.full((1, 2, 3, 1, 1), 0.3)
    stl[0, 0, :, 0, 0] = 0.5, 0.2, 0.9
    stl[0, 1, :, 0, 0] = 0.3, 0.6, 0.3
    joint = np.full((2, 2, 3, 1, 1), 0.4)
    joint[1] = 0.6
    heads = pl.concat(
        [worlds.heads(stl, "stl", ("pos", "dep"), (1,)), worlds.heads(joint, "joint", ("pos", "dep"), (1, 2))]
    )
    masks, _ = final_masks(worlds.gates(np.ones((2, 1, 1, 1)), ("pos", "dep"), (1,)))
    row = losses(claims(masks), skills(heads)).row(0, named=True)
    assert row["stl"] == pytest.approx(((0.2 * 10 + 0 * 20 + 0.6 * 30) / 60 + 0.3 * 20 / 60) / 2)
    assert row["joint"] == pytest.approx(0.2)
    assert row["loss"] == pytest.approx(row["stl"] - row["joint"])
    assert row["pretrained"] is None


def test_chance_of_a_head_is_its_own_under_shuffled_labels():
    values = worlds.heads(np.full((1, 1, 1, 1, 2), 0.7), "stl", ("pos",), (1,)).filter(
        pl.col("head").is_not_null()
    )
    values = values.with_columns(measure=pl.lit("clustering"))
    shuffled = values.with_columns(measure=pl.lit("clustering_shuffled"), value=pl.Series([0.1, 0.4]))
    assert skills(pl.concat([values, shuffled]))["skill"].to_list() == pytest.approx([0.6, 0.3])
    with pytest.raises(ValueError, match="no chance level for pos label 0"):
        skills(values)


def test_probes_and_masks_of_different_encoders(rng):
    gates, heads = worlds.competition(rng, 0)
    with pytest.raises(ValueError, match="different shapes"):
        losses(
            claims(final_masks(gates)[0]),
            skills(heads.filter((pl.col("layer") < 3) | pl.col("layer").is_null())),
        )
    with pytest.raises(ValueError, match="different shapes"):
        losses(claims(final_masks(gates.filter(pl.col("layer") < 3))[0]), skills(heads))


def test_labels_best_heads_in_order_of_frequency():
    stl = np.zeros((2, 1, 2, 1, 3))
    stl[0, 0] = [[[0.1, 0.5, 0.2]], [[0.9, 0.8, 0.7]]]
    stl[1, 0] = [[[0.7, 0.1, 0.2]], [[0.1, 0.8, 0.7]]]
    joint = np.full((1, 1, 1, 1, 3), 0.55)
    heads = pl.concat(
        [worlds.heads(stl, "stl", ("dep",), (1, 2)), worlds.heads(joint, "joint", ("dep",), (1,))]
    )
    table = label_values(heads)
    assert table.columns == ["task", "label", "count", "stl", "joint", "chance", "counted"]
    assert table["label"].to_list() == ["label 1", "label 0"]
    assert table["stl"].to_list() == pytest.approx([(0.9 + 0.8) / 2, (0.5 + 0.7) / 2])
    assert table["joint"].to_list() == [None, 0.55]
    assert table["chance"].to_list() == pytest.approx([worlds.CHANCE] * 2)
    assert table["counted"].all()
    assert absent_labels(table) == ("the MTL runs have no dep label label 1",)


def several(rng: np.random.Generator, effect: float, sets: int = 3):
    """The masks of the planted effect, others that know nothing of it, and the probes."""
    gates, heads = worlds.competition(rng, effect)
    masks = {"planted": final_masks(gates)[0]}
    for place in range(1, sets):
        masks[f"other {place}"] = final_masks(worlds.gates(worlds.random_gates(rng)))[0]
    return masks, heads


def test_each_setup_has_the_p_of_its_own_test():
    masks, heads = several(np.random.default_rng(1), 0.1)
    table = by_claims(masks, heads, draws=500)
    assert table["claims"].to_list() == list(masks)
    for row in table.iter_rows(named=True):
        own = compete(masks[row["claims"]], heads, draws=500)
        test = own.head_tests.row(by_predicate=pl.col("test") == PRIMARY, named=True)
        assert (row["value"], row["p"]) == (test["value"], test["p"])
        assert row["contested"] == own.heads["contested"].sum()
    assert table["p_holm"].to_list() == pytest.approx(closed(table["p"].to_numpy()).tolist())
    assert table["p"][0] == pytest.approx(1 / 501)
    assert table["p_holm"][0] == pytest.approx(3 / 501)
    assert table["lacking"].to_list() == ["", "", ""]


def test_what_has_no_p_is_no_test_and_what_is_lacking_is_said():
    masks, heads = several(np.random.default_rng(1), 0.1)
    gate = worlds.random_gates(np.random.default_rng(2))
    masks["all open"] = final_masks(worlds.gates(np.ones_like(gate)))[0]
    masks["two seeds"] = final_masks(worlds.gates(gate[:, :2], seeds=(1, 2)))[0]
    table = by_claims(masks, heads, draws=500)
    alone, two = table.row(3, named=True), table.row(4, named=True)
    assert (alone["p"], alone["p_holm"]) == (None, None)
    assert "nearly all heads" in alone["lacking"]
    assert "masks of 2 seeds" in two["lacking"]
    assert table["p_holm"][0] == pytest.approx(4 / 501)


@pytest.mark.slow
def test_the_level_holds_over_all_setups_together():
    """Without an effect no more than the level of such tables have a corrected p below it.

    Losses know nothing of claims then, so the same masks do for many worlds.
    """
    of_masks, per_masks = 5, 20
    found = 0
    for number in range(of_masks):
        masks, _ = several(np.random.default_rng([11, number]), 0.0, sets=4)
        for draw in range(per_masks):
            _, heads = worlds.competition(np.random.default_rng([11, number, draw]), 0.0)
            found += by_claims(masks, heads, draws=299)["p_holm"].min() <= 0.05
    assert found <= binom.ppf(0.999, of_masks * per_masks, 0.05)


def test_no_setups_no_rows():
    _, heads = several(np.random.default_rng(1), 0.1)
    assert by_claims({}, heads).is_empty()
