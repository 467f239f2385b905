"""Holm's correction against closed testing, that of Benjamini and Hochberg against scipy."""

from __future__ import annotations

import numpy as np
from scipy.stats import false_discovery_control

from mtl.probes.statistics.corrections import benjamini_hochberg, holm
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
