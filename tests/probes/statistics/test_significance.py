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
