"""Closed testing, the oracle of Holm's correction."""

from __future__ import annotations

import itertools

import numpy as np


def closed(p: np.ndarray) -> np.ndarray:
    """Closed testing by its definition: the largest Bonferroni p of all sets that a test is in."""
    places = range(len(p))
    subsets = [each for size in places for each in itertools.combinations(places, size + 1)]
    return np.array(
        [max(min(1, len(each) * p[list(each)].min()) for each in subsets if i in each) for i in places]
    )
