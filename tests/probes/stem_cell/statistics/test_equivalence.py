"""Equivalence, recovery and contrast: by hand, against scipy, and their levels by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mtl.probes.stem_cell.statistics.equivalence import contrast, equivalence, power, recovery, word_on

CONDITIONS = ("single", "A", "B", "C", "D", "E", "F", "G")


def conditions(rng, means, spread=0.4, seeds=3, of_seeds=0.0, names=CONDITIONS):
    """Scores by condition and seed; `spread` is one, or one for each condition."""
    luck = of_seeds * rng.normal(size=seeds)
    return {
        name: dict(enumerate(means.get(name, 0.0) + each * rng.normal(size=seeds) + luck))
        for name, each in zip(names, np.broadcast_to(spread, len(names)), strict=True)
    }


def pooled(runs):
    """The standard deviation of a run about the mean of its condition, and its degrees of freedom."""
    values = np.array([[*by_seed.values()] for by_seed in runs.values()])
    return float(np.sqrt(values.var(axis=1, ddof=1).mean())), values.size - len(values)


def mean(runs, name):
    return np.mean([*runs[name].values()])


def test_a_remedy_is_held_against_half_of_what_sharing_costs():
    runs = conditions(np.random.default_rng(3), {"single": 2.0, "C": 1.9})
    spread, freedom = pooled(runs)
    found = equivalence(runs, "C")
    cost = mean(runs, "single") - mean(runs, "A")
    assert found.difference.value == pytest.approx(mean(runs, "C") - mean(runs, "single"))
    assert found.margin == pytest.approx(cost / 2)
    scores = [  # over the middle of joint and single, and below as much above the single tasks
        (found.difference.value + cost / 2) / (spread * np.sqrt((1 + 0.25 + 0.25) / 3)),
        (cost / 2 - found.difference.value) / (spread * np.sqrt((1 + 2.25 + 0.25) / 3)),
    ]
    assert found.p == pytest.approx(stats.t.sf(min(scores), freedom))
    assert found.word == "reaches"
    reach = stats.t.ppf(0.95, freedom) * spread * np.sqrt(2 / 3)
    assert found.difference.high - found.difference.value == pytest.approx(reach)
    for far in (-3.0, 3.0):
        moved = runs | {"C": {seed: score + far for seed, score in runs["C"].items()}}
        assert equivalence(moved, "C").word == "differs"
    lossless = runs | {"A": runs["single"]}
    assert equivalence(lossless, "C").word == "cannot tell"  # nothing is lost that a remedy could restore


def test_recovery_is_the_set_of_ratios_that_a_t_test_keeps():
    """Fieller's interval inverts the test that gained - ratio * lost has mean 0."""
    runs = conditions(np.random.default_rng(3), {"single": 2.0, "C": 1.2})
    spread, freedom = pooled(runs)
    found = recovery(runs, "C")
    joint = mean(runs, "A")
    gained, lost = mean(runs, "C") - joint, mean(runs, "single") - joint
    assert found.share == pytest.approx(gained / lost)
    assert found.low < found.share < found.high
    for ratio in (found.low, found.high):
        error = spread * np.sqrt((1 + ratio**2 + (1 - ratio) ** 2) / 3)
        assert abs(gained - ratio * lost) / error == pytest.approx(stats.t.ppf(0.975, freedom))
    assert recovery(runs | {"C": runs["A"]}, "C").share == pytest.approx(0)
    assert recovery(runs | {"C": runs["single"]}, "C").share == pytest.approx(1)
    # A loss that may be none has no ratio.
    assert recovery(runs | {"single": runs["A"]}, "C").share is None


def test_the_contrast_and_its_power_are_those_of_scipy():
    runs = conditions(np.random.default_rng(6), {"single": 1.0, "C": 0.5})
    spread, freedom = pooled(runs)
    found = contrast(runs, "C", "D")
    value, error = mean(runs, "C") - mean(runs, "D"), spread * np.sqrt(2 / 3)
    assert found.p == pytest.approx(stats.t.sf(value / error, freedom))
    cost = mean(runs, "single") - mean(runs, "A")
    assert found.p_less == pytest.approx(
        stats.t.sf((cost / 2 - value) / (spread * np.sqrt((2 + 0.5) / 3)), freedom)
    )
    for seeds in (3, 6):
        degrees = len(CONDITIONS) * (seeds - 1)
        limit = stats.t.ppf(0.95, degrees)
        assert power(found.difference, 3, 0.7, seeds) == pytest.approx(
            stats.nct.sf(limit, degrees, 0.7 / (spread * np.sqrt(2 / seeds)))
        )
    assert np.isnan(power(found.difference, 1, 0.7, 3))
    without = {name: runs[name] for name in ("C", "D", "E")}
    assert np.isnan(contrast(without, "C", "D").p_less)
    assert [word_on(*p) for p in ((0.04, 0.04), (0.06, 0.04), (0.06, 0.06), (0.06, np.nan))] == [
        "supported", "refuted", "cannot tell", "cannot tell",
    ]  # fmt: skip


def test_scores_that_agree_by_accident_are_no_evidence():
    """Differences of two or three seeds without spread had a p of 0."""
    rng = np.random.default_rng(5)
    runs = conditions(rng, {})
    runs["C"] = {seed: score + 0.05 for seed, score in runs["D"].items()}
    assert contrast(runs, "C", "D").p > 0.3
    alike = {name: dict.fromkeys(range(3), score) for name, score in (("C", 1.0), ("D", 0.5))}
    assert np.isnan(contrast(alike, "C", "D").p)


SPREADS = {
    "equal": np.full(8, 0.4),
    "one double": np.array([0.4] * 3 + [0.8] + [0.4] * 4),
    "placebo fourfold": np.array([0.4] * 4 + [1.6] + [0.4] * 3),
    "single double": np.array([0.8] + [0.4] * 7),
    "seeds count": np.full(8, 0.3),
}


def draws(world, means, number, seed):
    rng = np.random.default_rng(seed)
    of_seeds = 0.6 if world == "seeds count" else 0.0
    return [conditions(rng, means, SPREADS[world], of_seeds=of_seeds) for _ in range(number)]


def sizes(world, number):
    """Rates: *reaches* at the margin, a gain where there is none, *less than half* at half of the cost, and
    how often Fieller's and the 90 % interval hold the truth."""
    at_margin = draws(world, {"single": 1.0, "C": 0.5}, number, 6)
    at_half = draws(world, {"single": 1.0, "C": 0.5}, number, 7)
    without = draws(world, {"single": 1.0}, number, 8)
    with_cost = [recovery(runs, "C") for runs in draws(world, {"single": 3.0, "C": 1.8}, number, 9)]
    given = [found for found in with_cost if found.share is not None]
    none = [contrast(runs, "C", "D") for runs in without]
    return {
        "reaches": np.mean([equivalence(runs, "C").word == "reaches" for runs in at_margin]),
        "gain": np.mean([found.p <= 0.05 for found in none]),
        "less": np.mean([contrast(runs, "C", "D").p_less <= 0.05 for runs in at_half]),
        "fieller": np.mean([found.low <= 0.6 <= found.high for found in given]),
        "interval": np.mean([found.difference.low <= 0 <= found.difference.high for found in none]),
    }


def test_levels_where_spreads_are_equal():
    found = sizes("equal", 300)
    assert max(found[name] for name in ("reaches", "gain", "less")) <= 0.09  # 3 standard errors
    assert found["fieller"] >= 0.91
    assert found["interval"] >= 0.845


@pytest.mark.slow
@pytest.mark.parametrize("world", SPREADS)
def test_levels_where_spreads_differ(world):
    found = sizes(world, 600)
    assert max(found[name] for name in ("reaches", "gain", "less")) <= 0.09
    assert found["fieller"] >= 0.87
    assert found["interval"] >= 0.83


@pytest.mark.slow
def test_six_seeds_can_tell():
    """The rule can be met: where spread and cost are those of docs/results/remedy.md for DEP."""
    rng = np.random.default_rng(10)
    reached = [
        equivalence(conditions(rng, {"single": 1.05, "C": 1.05}, 0.3, seeds=6), "C").word for _ in range(500)
    ]
    refuted = [
        contrast(conditions(rng, {"single": 1.05}, 0.3, seeds=6), "C", "D").p_less <= 0.05 for _ in range(500)
    ]
    assert reached.count("reaches") / 500 > 0.55
    assert np.mean(refuted) > 0.55
