"""Draws for bootstrap intervals over seeds and for permutation tests, many at a time."""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

Interval = tuple[float, float]


def seed_weights(seeds: int, draws: int, rng: np.random.Generator) -> Float[np.ndarray, "draw seed"]:
    """Shares of the seeds in bootstrap samples: all possible samples if there are at most `draws`."""
    if seeds**seeds <= draws:
        picks = np.array(list(itertools.product(range(seeds), repeat=seeds)))
        counts = (picks[:, :, None] == np.arange(seeds)).sum(1)
    else:
        counts = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws)
    return counts / seeds


def interval(values: Float[np.ndarray, " draw"], level: float) -> Interval:
    """The percentile interval over draws that are not NaN; NaN with fewer than two."""
    known = values[~np.isnan(values)]
    if len(known) < 2:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


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
