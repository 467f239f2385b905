"""Two statistics that compare heads only within strata, such as layers, and their permutation tests."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from mtl.probes.statistics.rank_correlation import centred_ranks
from mtl.probes.statistics.resampling import accepted_interval

Strata = Int[np.ndarray, " head"]
Orders = Int[np.ndarray, "draw head"]


def spearman(
    one: Float[np.ndarray, " head"], other: Float[np.ndarray, " head"], strata: Strata, orders: Orders
) -> tuple[float, float]:
    """Spearman's correlation of ranks within strata, pooled, and the chance of one as high under `orders`.

    With a single stratum it is the usual correlation; (NaN, NaN) if either is constant in every stratum.
    """
    once = np.ones((1, len(strata)))
    ranks, others = (centred_ranks(values, once, strata)[0] for values in (one, other))
    scale = float(np.linalg.norm(ranks) * np.linalg.norm(others))
    if scale == 0:
        return float("nan"), float("nan")
    observed = float(ranks @ others)
    return observed / scale, _chance(others[orders] @ ranks, observed, scale)


def mean_difference(
    values: Float[np.ndarray, " head"], chosen: Bool[np.ndarray, " head"], strata: Strata
) -> Float[np.ndarray, " head"]:
    """Weights whose inner product with values is the mean of the chosen less that of the others, over strata.

    A stratum of n chosen and m others has the weight n m / (n + m), which is the best if all values have the
    same variance; a stratum that lacks either does not count. All are NaN if no stratum has both.
    """
    _, inverse = np.unique(strata, return_inverse=True)
    chosen_in = np.bincount(inverse, chosen)[inverse]
    others_in = np.bincount(inverse, ~chosen)[inverse]
    # Each of the n chosen has the weight (n m / (n + m)) / n, each of the m others the same over m.
    weights = np.where(chosen, others_in, -chosen_in) / (chosen_in + others_in)
    total = weights[chosen].sum()
    return weights / total if total > 0 else np.full(len(values), np.nan)


def permutation_chance(
    values: Float[np.ndarray, " head"], weights: Float[np.ndarray, " head"], orders: Orders
) -> float:
    """Two-sided p of a weighted sum of values under these reorderings of the values.

    It is twice the smaller of the chances of a sum as high and of one as low, like in `inverted_interval`;
    NaN if the weights are.
    """
    if np.isnan(weights).any():
        return float("nan")
    return two_sided_chance(values[orders] @ weights, float(values @ weights), float(np.abs(values).max()))


def two_sided_chance(drawn: Float[np.ndarray, " draw"], observed: float, scale: float) -> float:
    """Twice the smaller of the chances of a value as high and of one as low, at most 1.

    Values closer than 1e-9 times `scale` count as equal.
    """
    return min(1.0, 2 * min(_chance(drawn, observed, scale), _chance(-drawn, -observed, scale)))


def inverted_interval(
    values: Float[np.ndarray, " head"],
    chosen: Bool[np.ndarray, " head"],
    weights: Float[np.ndarray, " head"],
    orders: Orders,
    level: float,
) -> tuple[float, float]:
    """The interval of all shifts of the chosen that the permutation test of `permutation_chance` accepts.

    A shift d is accepted if, with d subtracted from the chosen, the weighted sum is not extreme among those
    of reordered values (Fisher's shift model; `accepted_interval`). Let D and D_o be the sums of the values
    as they are and in order o, and C_o the sum of the reordered choice. Then the sum in order o is the higher
    one for d above (D - D_o) / (1 - C_o), and the lower one below it. `level` is that of the interval, such
    as 0.95. NaN if the weights are; infinite if there are too few different orders for the level.
    """
    if np.isnan(weights).any():
        return float("nan"), float("nan")
    lag = 1 - chosen.astype(np.float64)[orders] @ weights
    return accepted_interval(values @ weights - values[orders] @ weights, lag, 1.0, 1 - level)


def _chance(drawn: Float[np.ndarray, " draw"], observed: float, scale: float) -> float:
    # The observed order is one of those possible (Phipson & Smyth 2010); equal sums differ by rounding.
    return float((1 + (drawn >= observed - 1e-9 * scale).sum()) / (1 + len(drawn)))
