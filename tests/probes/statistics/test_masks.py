"""Overlap of masks, held against numpy, scipy, enumeration and sampling."""

from __future__ import annotations

import itertools
from math import comb

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom, spearmanr

from mtl.probes.report.report import claim_counts
from mtl.probes.sites import Site
from mtl.probes.statistics.masks import (
    Masks,
    chance_of_overlap,
    correlation_table,
    expected_in_all,
    final_masks,
    force_in_words,
    jaccard,
    mostly_forced,
    overlap_coefficient,
    overlap_distribution,
    overlap_table,
    predicted_agreement,
    task_overlaps,
)
from mtl.probes.statistics.significance import (
    inverted_interval,
    mean_difference,
    permutation_chance,
    permutations_within,
    spearman,
)
from mtl.probes.tables.heads_table import open_heads_by_mask
from tests.probes import worlds


@pytest.fixture
def rng():
    return np.random.default_rng(1)


@pytest.fixture
def gates(rng):
    return worlds.random_gates(rng)


def test_final_masks_are_the_last_step_in_order(gates):
    earlier = worlds.gates(1 - gates, step=50)
    table = pl.concat([earlier, worlds.gates(gates)]).sample(fraction=1, shuffle=True, seed=3)
    masks, notes = final_masks(table)
    order = [masks.tasks.index(task) for task in worlds.TASKS]
    np.testing.assert_array_equal(masks.gate[order], gates)
    np.testing.assert_array_equal(masks.opened, masks.gate > 1e-3)
    assert masks.seeds == worlds.SEEDS
    assert notes == ()


def test_a_seed_that_a_task_lacks_is_left_out_and_said(gates):
    table = worlds.gates(gates).filter(~((pl.col("task") == "ner") & (pl.col("seed") == 2)))
    masks, notes = final_masks(table)
    assert masks.seeds == (1, 3)
    np.testing.assert_array_equal(masks.gate, gates[:, [0, 2]])
    assert notes == ("no mask of ner with seed 2: that seed is left out",)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: t.filter(~((pl.col("seed") == 1) & (pl.col("head") == 7))), "of different shapes"),
        (lambda t: t.filter((pl.col("task") != "dep") | (pl.col("layer") + pl.col("head") > 0)), "31 heads"),
        (
            lambda t: pl.concat([t, t.with_columns(run=pl.lit("again"), step=pl.lit(120))]),
            "again, pos-1 all have",
        ),
        (
            lambda t: t.filter((pl.col("task") == "pos") == (pl.col("seed") == 1)),
            "no seed that all tasks have",
        ),
        (lambda t: t.clear(), "no masks"),
    ],
)
def test_masks_that_do_not_go_together(gates, spoil, said):
    with pytest.raises(ValueError, match=said):
        final_masks(spoil(worlds.gates(gates)))


def test_claimed_is_open_in_more_than_half_of_the_seeds():
    opened = np.zeros((1, 4, 1, 5))
    for head in range(5):
        opened[0, :head, 0, head] = 1
    masks, _ = final_masks(worlds.gates(opened, tasks=("pos",), seeds=(1, 2, 3, 4)))
    assert masks.claimed()[0, 0].tolist() == [False, False, False, True, True]


def test_of_two_seeds_both_must_have_a_claimed_head_open():
    opened = np.array([[[[1.0, 1.0, 0.0]], [[1.0, 0.0, 0.0]]]])
    masks, _ = final_masks(worlds.gates(opened, tasks=("pos",), seeds=(1, 2)))
    assert masks.claimed()[0, 0].tolist() == [True, False, False]


def test_the_papers_diagonal_by_the_formula_from_correlations(gates):
    """R^2 of a regression on two predictors has a closed form in the three correlations."""
    one, two, three = gates[2].reshape(3, -1)
    r12, r13, r23 = (np.corrcoef(a, b)[0, 1] for a, b in ((one, two), (one, three), (two, three)))
    squared = (r13**2 + r23**2 - 2 * r12 * r13 * r23) / (1 - r12**2)
    cells = one.size
    expected = np.sqrt(1 - (1 - squared) * (cells - 1) / (cells - 3))
    assert predicted_agreement(gates[2]) == pytest.approx(expected)


def test_the_papers_diagonal_at_its_ends(rng, gates):
    one, two, _ = gates[0]
    assert predicted_agreement(np.stack([one, two, 0.2 * one + 0.5 * two + 0.1])) == pytest.approx(1)
    assert np.isnan(predicted_agreement(gates[0, :2]))
    # As many coefficients as heads leave nothing to be explained: no adjusted R^2.
    assert [np.isnan(predicted_agreement(rng.random((3, 1, heads)))) for heads in (2, 3, 4)] == [
        True, True, False,
    ]  # fmt: skip
    assert np.isnan(predicted_agreement(np.stack([one, two, np.ones_like(one)])))
    unrelated = [predicted_agreement(rng.random((3, 4, 8))) for _ in range(50)]
    assert min(unrelated) == 0


def test_correlation_table(gates):
    masks, _ = final_masks(worlds.gates(gates))
    table = correlation_table(masks)
    assert table.height == 10
    row = table.row(by_predicate=(pl.col("first") == "pos") & (pl.col("second") == "dep"), named=True)
    pos, dep = gates[0], gates[2]
    assert row["paper"] == pytest.approx(np.corrcoef(pos.mean(0).ravel(), dep.mean(0).ravel())[0, 1])
    every = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a in pos for b in dep]
    assert row["pairwise"] == pytest.approx(np.mean(every))
    assert "low" not in table.columns
    own = table.row(by_predicate=(pl.col("first") == "ner") & (pl.col("second") == "ner"), named=True)
    assert own["paper"] == pytest.approx(predicted_agreement(gates[1]))
    assert own["pairwise"] == pytest.approx(
        np.corrcoef(gates[1].reshape(3, -1))[np.triu_indices(3, 1)].mean()
    )


def test_correlation_table_of_a_single_run_says_what_it_can(gates):
    masks, _ = final_masks(worlds.gates(gates[:, :1], seeds=(1,)))
    table = correlation_table(masks)
    own, between = table.row(0, named=True), table.row(1, named=True)
    assert own["paper"] is None
    assert own["pairwise"] is None
    assert between["paper"] == pytest.approx(np.corrcoef(gates[0, 0].ravel(), gates[1, 0].ravel())[0, 1])


def test_jaccard_and_overlap_coefficient_by_hand():
    first = np.array([[True, True, False, False]])
    second = np.array([[True, True, True, False]])
    assert jaccard(first, second) == pytest.approx(2 / 3)
    assert overlap_coefficient(first, second) == 1
    none = np.zeros_like(first)
    assert np.isnan(jaccard(none, none))
    assert jaccard(none, first) == 0
    assert np.isnan(overlap_coefficient(none, first))


def test_hypergeometric_against_scipy(rng):
    first, second = rng.random((4, 8)) < 0.4, rng.random((4, 8)) < 0.7
    common, a, b = int((first & second).sum()), int(first.sum()), int(second.sum())
    expected, more, fewer = chance_of_overlap(first, second, keep_layers=False)
    assert expected == pytest.approx(a * b / 32)
    assert more == pytest.approx(hypergeom.sf(common - 1, 32, a, b))
    assert fewer == pytest.approx(hypergeom.cdf(common, 32, a, b))


def test_layered_chance_by_enumerating_all_masks():
    """All masks with the same number of open heads in each of two layers of four heads."""
    first = np.array([[True, True, False, False], [True, False, False, False]])
    second = np.array([[True, False, True, True], [True, True, False, False]])
    counts = np.zeros(5)
    for a in itertools.combinations(range(4), 3):
        for b in itertools.combinations(range(4), 2):
            other = np.zeros((2, 4), dtype=bool)
            other[0, list(a)] = other[1, list(b)] = True
            counts[(first & other).sum()] += 1
    counts /= comb(4, 3) * comb(4, 2)
    distribution = overlap_distribution(4, first.sum(1), second.sum(1))
    np.testing.assert_allclose(distribution, counts[: len(distribution)], atol=1e-12)
    expected, more, fewer = chance_of_overlap(first, second, keep_layers=True)
    assert expected == pytest.approx(2 * 3 / 4 + 1 * 2 / 4)
    assert expected == pytest.approx(counts @ np.arange(5))
    assert more == pytest.approx(counts[2:].sum())
    assert fewer == pytest.approx(counts[:3].sum())


def test_heads_that_all_masks_keep_by_chance(rng):
    masks = rng.random((3, 4, 6)) < np.array([[[0.2]], [[0.5]], [[0.8]]])
    assert expected_in_all(masks[:2]) == pytest.approx(chance_of_overlap(*masks[:2], keep_layers=True)[0])
    shuffled = rng.permuted(np.broadcast_to(masks, (20000, *masks.shape)), axis=-1)
    assert expected_in_all(masks) == pytest.approx(shuffled.all(1).sum((1, 2)).mean(), abs=0.05)


def test_layered_chance_against_sampled_permutations(rng):
    first = rng.random((4, 12)) < np.array([[0.1], [0.4], [0.6], [0.9]])
    second = rng.random((4, 12)) < np.array([[0.2], [0.3], [0.7], [0.9]])
    _, more, fewer = chance_of_overlap(first, second, keep_layers=True)
    shuffled = rng.permuted(np.broadcast_to(second, (20000, 4, 12)), axis=2)
    overlaps = (shuffled & first).sum((1, 2))
    common = (first & second).sum()
    assert more == pytest.approx((overlaps >= common).mean(), abs=0.015)
    assert fewer == pytest.approx((overlaps <= common).mean(), abs=0.015)


def test_layers_explain_overlap_that_is_only_theirs():
    """Two masks that open the same layers at random: far from chance over all heads, not within layers."""
    rng = np.random.default_rng(5)
    share = np.array([[0.9], [0.9], [0.1], [0.1]])
    row = overlap_table(("a", "b"), rng.random((2, 4, 12)) < share).row(0, named=True)
    assert row["p_more"] < 1e-3
    assert row["p_more_layers"] > 0.05


@given(st.integers(0, 2**32 - 1))
def test_laws_of_the_tails(seed):
    rng = np.random.default_rng(seed)
    first, second = rng.random((2, 3, 5)) < rng.random((2, 3, 1))
    for keep_layers in (False, True):
        expected, more, fewer = chance_of_overlap(first, second, keep_layers)
        exact = overlap_distribution(5, first.sum(1), second.sum(1))[(first & second).sum()]
        assert 0 <= more <= 1
        assert 0 <= fewer <= 1
        if keep_layers:
            assert more + fewer == pytest.approx(1 + exact)
        assert chance_of_overlap(second, first, keep_layers) == pytest.approx((expected, more, fewer))


def test_q_values_are_benjamini_hochbergs_over_all_pairs(rng):
    opened = rng.random((6, 4, 8)) < 0.5
    table = overlap_table("abcdef", opened)
    assert table.height == 15
    p = table["p_more_layers"].to_numpy()
    order = np.argsort(p)
    adjusted = np.minimum.accumulate((p[order] * 15 / np.arange(1, 16))[::-1])[::-1]
    np.testing.assert_allclose(table["q_more_layers"].to_numpy()[order], np.minimum(adjusted, 1))
    assert (table["q_more"] >= table["p_more"] - 1e-12).all()
    assert overlap_table("a", opened[:1]).is_empty()


def test_task_overlaps_take_claimed_heads(gates):
    masks, _ = final_masks(worlds.gates(gates))
    row = task_overlaps(masks).row(0, named=True)
    claimed = (gates > 1e-3).sum(1) >= 2
    assert row["jaccard"] == pytest.approx(jaccard(claimed[0], claimed[1]))


def test_permutations_stay_within_their_strata(rng):
    strata = np.array([1, 0, 1, 2, 0, 1])
    orders = permutations_within(strata, 4000, rng)
    assert (strata[orders] == strata).all()
    assert (np.sort(orders, axis=1) == np.arange(6)).all()
    assert len(np.unique(orders, axis=0)) == 6 * 2


def test_spearman_is_scipys_with_one_stratum(rng):
    one, other = rng.integers(0, 5, 30).astype(float), rng.normal(size=30)
    strata = np.zeros(30, dtype=int)
    value, p = spearman(one, other, strata, permutations_within(strata, 20000, rng))
    expected = spearmanr(one, other, alternative="greater")
    assert value == pytest.approx(expected.statistic)
    assert p == pytest.approx(expected.pvalue, abs=0.02)


def test_spearman_within_strata_by_all_orders(rng):
    one = np.array([1.0, 2, 3, 1, 2, 3])
    other = np.array([1.0, 3, 2, 15, 14, 17])
    strata = np.array([0, 0, 0, 1, 1, 1])
    sums = [
        np.dot(one, np.append(a, b))
        for a in itertools.permutations((1, 3, 2))
        for b in itertools.permutations((2, 1, 3))
    ]
    observed = np.dot(one, (1, 3, 2, 2, 1, 3))
    value, p = spearman(one, other, strata, permutations_within(strata, 20000, rng))
    assert value == pytest.approx(0.5)
    assert p == pytest.approx((np.array(sums) >= observed).mean(), abs=0.015)


def test_spearman_of_what_varies_only_between_strata_is_not_defined(rng):
    strata = np.array([0, 0, 1, 1])
    orders = permutations_within(strata, 10, rng)
    assert np.isnan(spearman(np.array([1.0, 1, 2, 2]), rng.random(4), strata, orders)).all()


def test_mean_difference_by_hand(rng):
    values, chosen = np.array([1.0, 2, 6, 10, 20, 5]), np.array([False, True, True, False, True, True])
    one = np.zeros(6, dtype=int)
    assert values @ mean_difference(values, chosen, one) == pytest.approx(33 / 4 - 11 / 2)
    # Stratum 0: 1 against 2 and 6, weight 2/3; stratum 1: 10 against 20, weight 1/2; stratum 2 has no other.
    strata = np.array([0, 0, 0, 1, 1, 2])
    weights = mean_difference(values, chosen, strata)
    assert values @ weights == pytest.approx((3 * 2 / 3 + 10 / 2) / (2 / 3 + 1 / 2))
    assert np.isnan(mean_difference(values, np.ones(6, dtype=bool), strata)).all()
    orders = permutations_within(strata, 6000, rng)
    drawn = np.array([values[order] @ weights for order in orders])
    sides = [np.mean(sign * drawn >= sign * (values @ weights) - 1e-9) for sign in (1, -1)]
    assert permutation_chance(values, weights, orders) == pytest.approx(min(1, 2 * min(sides)), abs=1e-3)
    assert np.isnan(permutation_chance(values, np.full(6, np.nan), orders))


CONTESTED = (3, 3, 4, 0, 1, 3)
"""Contested heads of each layer's twelve in the study on EWT-5's subset."""


def study_cells() -> tuple[np.ndarray, np.ndarray]:
    """Layers and contested heads as that study has them."""
    contested = np.array([[head < count for head in range(12)] for count in CONTESTED]).ravel()
    return np.arange(6).repeat(12), contested


def accepted(shift: float, values, contested, weights, orders, level: float) -> bool:
    """Whether the permutation test accepts that the contested heads are shifted so far, by its definition."""
    unshifted = values - shift * contested
    return permutation_chance(unshifted, weights, orders) > 1 - level


def test_the_inverted_interval_is_what_the_test_accepts(rng):
    layers, contested = study_cells()
    weights = mean_difference(np.zeros(72), contested, layers)
    orders = permutations_within(layers, 400, rng)
    for level in (0.8, 0.95):
        values = rng.normal(size=72) + 0.4 * contested
        low, high = inverted_interval(values, contested, weights, orders, level)
        for end, inwards in ((low, 1), (high, -1)):
            assert accepted(end + inwards * 1e-6, values, contested, weights, orders, level)
            assert not accepted(end - inwards * 1e-6, values, contested, weights, orders, level)
        assert low < values @ weights < high


@pytest.mark.slow
def test_the_inverted_interval_covers_what_it_says(rng):
    """On the study's cells, where a bootstrap of the heads within cells covers 85 to 87 of a hundred."""
    layers, contested = study_cells()
    weights = mean_difference(np.zeros(72), contested, layers)
    draws, covered = 1500, 0
    for _ in range(draws):
        values = rng.normal(size=72) + 0.3 * contested + layers
        orders = permutations_within(layers, 400, rng)
        low, high = inverted_interval(values, contested, weights, orders, 0.95)
        covered += low <= 0.3 <= high
    assert covered / draws == pytest.approx(0.95, abs=3 * (0.95 * 0.05 / draws) ** 0.5)


def test_an_interval_that_no_order_can_bound_is_infinite(rng):
    strata, contested = np.array([0, 0, 1, 1]), np.array([True, False, True, False])
    values = rng.normal(size=4)
    weights = mean_difference(values, contested, strata)
    orders = permutations_within(strata, 1000, rng)
    assert inverted_interval(values, contested, weights, orders, 0.95) == (-np.inf, np.inf)
    nothing = np.full(4, np.nan)
    assert np.isnan(inverted_interval(values, contested, nothing, orders, 0.95)).all()


def test_forced_heads_are_no_learned_claims_and_the_finding_rests_on_the_learned_ones(gates):
    """POS and DEP claim the same eight heads; POS learned two of them, DEP two others."""
    opened = np.zeros((2, 3, 4, 8), dtype=bool)
    opened[:, :, 0] = True
    learned = np.zeros_like(opened)
    learned[0, :, 0, :2] = learned[1, :, 0, 2:4] = True
    learned[1, :, 3, 7] = True  # closed by force
    table = worlds.gates(opened.astype(float), tasks=("pos", "dep")).with_columns(
        learned=pl.Series(learned.ravel())
    )
    masks, _ = final_masks(table)
    assert masks.claims_in_words() == "pos 8 (training chose 2), dep 8 (training chose 2)"
    np.testing.assert_array_equal(masks.forced(), opened != learned)
    row = task_overlaps(masks).row(0, named=True)
    every = overlap_table(masks.tasks, masks.claimed()).row(0, named=True)
    alone = overlap_table(masks.tasks, opened[:, 0] & learned[:, 0]).row(0, named=True)
    assert {name: row[name] for name in every} == every
    assert (row["learned_first"], row["learned_second"], row["learned_common"]) == (2, 2, 0)
    for name in ("expected_layers", "jaccard", "q_more_layers", "q_fewer_layers"):
        assert row[f"learned_{name}"] == alone[name]
    assert every["common"] == 8
    # All heads of layer 0 in both masks is what chance gives where layers keep their numbers of heads.
    assert row["finding"] == "as by chance"
    unforced = task_overlaps(final_masks(worlds.gates(gates))[0])
    for name in ("common", "expected_layers", "jaccard", "q_more_layers"):
        assert unforced[f"learned_{name}"].equals(unforced[name])


def test_what_a_target_closed_is_not_called_a_choice_of_training():
    """All 32 heads were open before the choice of eight: training had kept them all, and chosen none."""
    opened = np.zeros((2, 3, 4, 8), dtype=bool)
    opened[:, :, 0] = True
    table = worlds.gates(opened.astype(float), tasks=("pos", "dep")).with_columns(learned=True)
    masks, _ = final_masks(table)
    assert (masks.shut_by_force() == 24).all()
    assert masks.forced_in_words() == (
        "heads that most seeds keep: pos 8, dep 8, and up to 24 heads of a mask were closed by force; "
    )
    assert force_in_words(opened[0, 0], masks.learned[0, 0]) == "24 closed by force"
    [row] = claim_counts({"STL": masks}).head(1).rows(named=True)
    assert (row["claimed"], row["opened_by_force"], row["closed_by_force"]) == (8, 0, 24)
    shown = table.filter(seed=1).with_columns(forced=pl.col("open") != pl.col("learned"))
    assert open_heads_by_mask(shown, "task", "open").drop("heads").rows() == [
        ("pos", 8, 0, 24),
        ("dep", 8, 0, 24),
    ]


def test_the_finding_changes_with_what_was_forced():
    """Twelve common heads of 32 in four layers, of which both learned three apart from each other."""
    opened = np.zeros((2, 3, 4, 8), dtype=bool)
    opened[:, :, :, :3] = True
    learned = np.zeros_like(opened)
    learned[0, :, :, 0] = learned[1, :, :, 1] = True
    findings = []
    for of_training in (opened, learned):
        table = worlds.gates(opened.astype(float), tasks=("pos", "dep"), seeds=(1, 2, 3))
        masks, _ = final_masks(table.with_columns(learned=pl.Series(of_training.ravel())))
        findings.append(task_overlaps(masks)["finding"].item())
    assert findings == ["more than chance", "as by chance"]


def test_mostly_forced_is_about_the_masks_that_agree():
    opened = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0]], dtype=bool)
    learned = np.array([[0, 0, 1, 0], [0, 0, 1, 1], [1, 1, 1, 1]], dtype=bool)
    up, down = mostly_forced(opened, learned)
    assert up.tolist() == [True, True, False, False]
    assert down.tolist() == [False, False, True, True]


def of_preferences(strength: float, common: bool, by_seed: bool, random: np.random.Generator) -> Masks:
    """Three seeds of two tasks that keep the two best of a layer's heads, by preferences and noise.

    `common`: both tasks have the same preferences. `by_seed`: runs of one seed have the same noise.
    """
    wanted = strength * random.normal(size=(2, 1, 6, 12))
    noise = random.gumbel(size=(2, 3, 6, 12))
    value = (wanted[:1] if common else wanted) + (noise[:1] if by_seed else noise)
    opened = value >= np.sort(value)[..., -2:-1]
    sites = tuple(Site("self", layer) for layer in range(6))
    return Masks(("pos", "dep"), (1, 2, 3), sites, opened.astype(float), opened, opened)


@pytest.mark.parametrize(
    ("strength", "common", "by_seed", "fewest", "most"),
    [
        pytest.param(0, False, True, 0, 0.03, id="noise of the seed"),
        pytest.param(2, False, True, 0, 0.06, id="and own preferences"),
        pytest.param(2, False, False, 0, 0.06, id="own preferences"),
        pytest.param(3, True, False, 0.95, 1, id="common preferences"),
    ],
)
def test_noise_that_runs_of_a_seed_share_is_no_finding(
    strength: float, common: bool, by_seed: bool, fewest: float, most: float
) -> None:
    random = np.random.default_rng(0)
    worlds = [task_overlaps(of_preferences(strength, common, by_seed, random)) for _ in range(100)]
    found = [world["finding"].item() for world in worlds].count("more than chance") / len(worlds)
    assert fewest <= found <= most
