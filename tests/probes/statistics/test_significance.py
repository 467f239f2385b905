"""Holm's correction against closed testing, that of Benjamini and Hochberg against scipy; exchanged signs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import false_discovery_control

from mtl.probes.statistics.significance import benjamini_hochberg, holm, paired
from tests.probes.closed_testing import closed


def test_holm_is_closed_testing():
    rng = np.random.default_rng(3)
    for size in range(1, 7):
        p = rng.choice([0.001, 0.01, 0.02, 0.3, 0.9, 1.0], size) * rng.choice([1, rng.random()], size)
        np.testing.assert_allclose(holm(p), closed(p))
    assert len(holm(np.array([]))) == 0


def test_false_discovery_rates_are_scipys():
    rng = np.random.default_rng(4)
    for size in range(1, 9):
        p = rng.choice([0.001, 0.01, 0.02, 0.3, 0.9, 1.0], size) * rng.choice([1, rng.random()], size)
        np.testing.assert_allclose(benjamini_hochberg(p), false_discovery_control(p))
    assert len(benjamini_hochberg(np.array([]))) == 0


def test_three_seeds_cannot_give_a_small_p_and_six_can():
    assert paired(np.array([0.1, 0.2, 0.3]), 0.95)[2] == pytest.approx(2 / 8)
    assert paired(np.full(6, 0.1) + np.arange(6) / 100, 0.95)[2] == pytest.approx(2 / 64)
    assert paired(np.arange(1, 31) / 100, 0.95)[2] == pytest.approx(1 / 4096)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 6, 9])
@pytest.mark.parametrize("world", ["normal", "heavy tails", "a run in ten fails", "skewed"])
def test_intervals_paired_by_seed_cover_and_signs_find_little(world, seeds):
    rng, worlds = np.random.default_rng(12), 1000

    def runs():
        failed = 10.0 * (rng.random(seeds) < 0.1)
        return {
            "normal": rng.normal(size=seeds),
            "heavy tails": rng.standard_t(3, seeds),
            "a run in ten fails": rng.normal(size=seeds) - failed,
            "skewed": 1 - rng.exponential(size=seeds),
        }[world]

    one_side = world == "skewed"
    found = [paired(runs() - (0 if one_side else runs()), 0.95) for _ in range(worlds)]
    covered = np.mean([low <= 0 <= high for low, high, _ in found])
    significant = np.mean([p <= 0.05 for *_, p in found])
    assert covered >= (0.86 if one_side else 0.93)
    assert significant <= (0.11 if one_side else 0.07) * (seeds >= 6)
