"""Student's interval over seeds, and draws for permutation tests, many at a time."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

Interval = tuple[float, float]


def student(values: Float[np.ndarray, " seed"], level: float = 0.95) -> Interval:
    """Student's interval of the mean over seeds; NaN for a single seed."""
    if len(values) < 2:
        return float("nan"), float("nan")
    reach = float(stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return float(values.mean()) - reach, float(values.mean()) + reach


def permutations_within(
    strata: Int[np.ndarray, " head"], draws: int, rng: np.random.Generator
) -> Int[np.ndarray, "draw head"]:
    """Random orders in which every element stays within its stratum."""
    places = np.argsort(strata, kind="stable")
    shuffled = np.argsort(strata + rng.random((draws, len(strata))), axis=1)
    orders = np.empty_like(shuffled)
    orders[:, places] = shuffled
    return orders
