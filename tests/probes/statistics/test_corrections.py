"""Holm's correction against closed testing."""

from __future__ import annotations

import numpy as np

from mtl.probes.statistics.corrections import holm
from tests.probes.closed_testing import closed


def test_holm_is_closed_testing():
    rng = np.random.default_rng(3)
    for size in range(1, 7):
        p = rng.choice([0.001, 0.01, 0.02, 0.3, 0.9, 1.0], size) * rng.choice([1, rng.random()], size)
        np.testing.assert_allclose(holm(p), closed(p))
    assert len(holm(np.array([]))) == 0
