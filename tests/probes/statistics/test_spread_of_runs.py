"""Differences of setups by the spread of all runs: by hand, by scipy, and how often they are right."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mtl.probes.statistics.spread_of_runs import difference, seed_effect

DRAWS = 1000


def drawn(rng, spreads, seeds=3, of_seeds=0.0):
    luck = of_seeds * rng.normal(size=seeds)
    return {
        f"setup{place}": dict(enumerate(spread * rng.normal(size=seeds) + luck))
        for place, spread in enumerate(spreads)
    }


def scores(runs, name):
    return np.array([*runs[name].values()])


def moved(runs, name, by):
    return runs | {name: {seed: score + by for seed, score in runs[name].items()}}


def listed(*values):
    return dict(enumerate(values))


COMPARED = {"setup0": 1.0, "setup1": -1.0}


def test_equal_spreads_are_those_of_a_linear_model():
    runs = drawn(np.random.default_rng(0), [0.4, 0.4, 0.4, 0.4])
    found = difference(runs, COMPARED)
    assert found.pooled
    # Least squares on indicators of the setups.
    values = np.concatenate([scores(runs, name) for name in runs])
    design = np.kron(np.eye(4), np.ones((3, 1)))
    fitted, squares, *_ = np.linalg.lstsq(design, values, rcond=None)
    error = np.sqrt(squares[0] / 8 * 2 / 3)
    assert found.value == pytest.approx(fitted[0] - fitted[1])
    assert found.high - found.value == pytest.approx(stats.t.ppf(0.975, 8) * error)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(found.value) / error, 8))


def test_setups_that_spread_more_have_a_spread_of_their_own():
    runs = drawn(np.random.default_rng(1), [4.0, 4.0, 0.4, 0.4, 0.4])
    found = difference(runs, COMPARED)
    welch = stats.ttest_ind(scores(runs, "setup0"), scores(runs, "setup1"), equal_var=False)
    assert not found.pooled
    assert found.p == pytest.approx(welch.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(welch.confidence_interval()))


def test_two_setups_alone_are_compared_by_welch():
    runs = drawn(np.random.default_rng(2), [1.0, 2.0])
    assert difference(runs, COMPARED).p == pytest.approx(
        stats.ttest_ind(*(scores(runs, name) for name in runs), equal_var=False).pvalue
    )


def test_a_mean_of_setups_against_one():
    runs = drawn(np.random.default_rng(5), [1.0] * 4)
    found = difference(runs, {"setup0": 1.0, "setup1": -0.5, "setup2": -0.5})
    assert found.pooled
    variance = np.mean([scores(runs, name).var(ddof=1) for name in runs])
    assert found.high - found.low == pytest.approx(
        2 * stats.t.ppf(0.975, 8) * np.sqrt(variance * (1 + 0.25 + 0.25) / 3)
    )


def test_what_has_no_spread_has_no_interval():
    alike = {"setup0": listed(90.0, 90.0, 90.0), "setup1": listed(89.0, 89.0, 89.0)}
    one_run = {"setup0": listed(90.0), "setup1": listed(89.0)}
    for runs in (alike, one_run):
        found = difference(runs, COMPARED)
        assert found.value == 1.0
        assert np.isnan([found.low, found.high, found.p]).all()
    beside = difference(one_run | {"setup2": listed(1.0, 2.0, 3.0)}, COMPARED)
    assert beside.pooled
    assert beside.high == pytest.approx(1 + stats.t.ppf(0.975, 2) * np.sqrt(2))


SPREADS = {
    "equal": lambda rng: np.full(9, 0.42),
    "differ a little": lambda rng: 0.42 * np.exp(rng.normal(0, 0.3, 9)),
    "differ much": lambda rng: 0.42 * np.exp(rng.normal(0, 0.6, 9)),
    "both half as much again": lambda rng: np.array([0.63] * 2 + [0.42] * 7),
    "both double": lambda rng: np.array([0.84] * 2 + [0.42] * 7),
    "one double": lambda rng: np.array([0.84] + [0.42] * 8),
    "one fourfold": lambda rng: np.array([1.68] + [0.42] * 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("world", SPREADS)
def test_intervals_cover_where_spreads_differ(world):
    rng = np.random.default_rng(7)
    found = [difference(drawn(rng, SPREADS[world](rng)), COMPARED) for _ in range(2 * DRAWS)]
    covered = np.mean([one.low <= 0 <= one.high for one in found])
    assert covered >= 0.895
    if world == "equal":
        assert 0.945 <= covered <= 0.975


@pytest.mark.slow
def test_a_point_is_found_more_often_than_in_pairs():
    rng = np.random.default_rng(8)
    worlds = [drawn(rng, [0.42] * 9) for _ in range(DRAWS)]
    ours = np.mean([difference(moved(runs, "setup0", 1), COMPARED).low > 0 for runs in worlds])
    paired = np.mean(
        [
            stats.ttest_rel(scores(runs, "setup0") + 1, scores(runs, "setup1")).confidence_interval().low > 0
            for runs in worlds
        ]
    )
    assert ours - paired > 0.15


def test_the_seed_effect_is_that_of_a_two_way_layout():
    runs = drawn(np.random.default_rng(4), [0.4] * 5, of_seeds=1.0)
    table = np.array([scores(runs, name) for name in runs])
    rest = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    f = 5 * table.mean(0).var(ddof=1) / ((rest**2).sum() / 8)
    found = seed_effect(runs)
    assert (found.f, found.p) == pytest.approx((f, stats.f.sf(f, 2, 8)))
    beside = difference(runs, COMPARED)
    assert beside.seeds
    assert beside.value == pytest.approx(table[0].mean() - table[1].mean())
    assert beside.error == pytest.approx(np.sqrt((rest**2).sum() / 8 * 2 / 3))
    assert beside.freedom == 8


def test_seeds_that_some_setups_lack_are_no_difference_of_setups():
    """A setup with a lucky seed alone is compared beside that seed's luck."""
    runs = {f"setup{place}": listed(0.0, 5.0, 9.0) for place in range(6)}
    runs = {name: {seed: score + 0.1 * np.sin(9 * place + seed) for seed, score in of_setup.items()}
            for place, (name, of_setup) in enumerate(runs.items())}  # fmt: skip
    runs["setup0"] = {2: runs["setup0"][2]}
    found = difference(runs, COMPARED)
    assert found.seeds
    assert abs(found.value) < 0.3
    apart = {f"setup{place}": {seed + 10 * place: float(seed) for seed in range(3)} for place in range(3)}
    assert np.isnan(seed_effect(apart).p)
    assert not difference(apart, COMPARED).seeds


@pytest.mark.slow
@pytest.mark.parametrize("of_seeds", [0.0, 0.2, 0.42, 0.84])
def test_intervals_cover_where_seeds_count(of_seeds):
    rng = np.random.default_rng(9)
    found = [difference(drawn(rng, [0.42] * 9, of_seeds=of_seeds), COMPARED) for _ in range(2 * DRAWS)]
    covered = np.mean([one.low <= 0 <= one.high for one in found])
    assert covered >= 0.94
    if of_seeds == 0:
        assert covered <= 0.975
        assert np.mean([one.seeds for one in found]) < 0.065
