"""Student's interval, orders for permutation tests, and intervals that invert such tests."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtrit

Interval = tuple[float, float]


def student(values: Float[np.ndarray, " seed"], level: float = 0.95) -> Interval:
    """Student's interval of the mean over seeds; NaN for a single seed."""
    if len(values) < 2:
        return float("nan"), float("nan")
    error = float(values.std(ddof=1)) / len(values) ** 0.5
    return t_interval(float(values.mean()), error, len(values) - 1, level)


def t_interval(mean: float, error: float, freedom: int | float, level: float) -> Interval:
    """Student's interval from a mean, its standard error and the degrees of freedom."""
    reach = float(stdtrit(freedom, (1 + level) / 2)) * error
    return mean - reach, mean + reach


def permutations_within(
    strata: Int[np.ndarray, " head"], draws: int, rng: np.random.Generator
) -> Int[np.ndarray, "draw head"]:
    """Random orders in which every head stays within its stratum."""
    places = np.argsort(strata, kind="stable")
    shuffled = np.argsort(strata + rng.random((draws, len(strata))), axis=1)
    orders = np.empty_like(shuffled)
    orders[:, places] = shuffled
    return orders


def accepted_interval(
    gaps: Float[np.ndarray, " draw"], slopes: Float[np.ndarray, " draw"], scale: float, error: float
) -> Interval:
    """The interval of all effects that a two-sided permutation test accepts (test inversion).

    If an effect d is subtracted, the statistic of the observed order exceeds that of a drawn order by
    gap - d times slope. So each draw changes sides at gap / slope, and in the other direction if the slope is
    below 0. A draw whose slope is within 1e-9 times `scale` of 0 never changes sides. The ends are the least
    and the greatest of these limits between which effects are accepted. `error` is that of both ends
    together, such as 0.05. An end is infinite if the test accepts all effects on that side, as it does with
    too few different orders.
    """
    moves = np.abs(slopes) > 1e-9 * scale
    limits = gaps[moves] / slopes[moves]
    order = np.argsort(limits)
    limits = np.array([-np.inf, *limits[order], np.inf])
    # Between each two limits, the number of draws whose statistic is as high as the observed one.
    above = int((slopes[moves] < 0).sum()) + np.cumsum([0, *np.sign(slopes[moves][order])])
    fewer = np.minimum(above, moves.sum() - above)
    always = 1 + int((~moves).sum())  # the observed order, and draws that change nothing
    accepted = np.flatnonzero(fewer + always > error / 2 * (1 + len(slopes)))
    if not len(accepted):
        return float("-inf"), float("inf")
    return float(limits[accepted[0]]), float(limits[accepted[-1] + 1])
