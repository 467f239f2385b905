"""Two statistics over heads that compare heads only within strata, such as layers."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import rankdata

Strata = Int[np.ndarray, " head"]
Orders = Int[np.ndarray, "draw head"]


def spearman(
    one: Float[np.ndarray, " head"], other: Float[np.ndarray, " head"], strata: Strata, orders: Orders
) -> tuple[float, float]:
    """Pooled Spearman correlation of ranks taken within strata, and the chance of one as high under `orders`.

    With a single stratum it is Spearman's; (NaN, NaN) where either is constant in every stratum.
    """
    ranks, others = _centred_ranks(one, strata), _centred_ranks(other, strata)
    scale = float(np.linalg.norm(ranks) * np.linalg.norm(others))
    if scale == 0:
        return float("nan"), float("nan")
    observed = float(ranks @ others)
    return observed / scale, _chance(others[orders] @ ranks, observed, scale)


def mean_difference(
    values: Float[np.ndarray, " head"], chosen: Bool[np.ndarray, " head"], strata: Strata
) -> Float[np.ndarray, " head"]:
    """Weights whose product with values is the mean of the chosen minus that of the others, over strata.

    A stratum of n chosen and m others counts with n m / (n + m), as it should if all values vary alike; one
    without either has no part. NaN throughout if no stratum has both.
    """
    _, inverse = np.unique(strata, return_inverse=True)
    ours = np.bincount(inverse, chosen)[inverse]
    theirs = np.bincount(inverse, ~chosen)[inverse]
    # Every head of a cell of n weighs (n m / (n + m)) / n.
    weights = np.where(chosen, theirs, -ours) / (ours + theirs)
    total = weights[chosen].sum()
    return weights / total if total > 0 else np.full(len(values), np.nan)


def permutation_chance(
    values: Float[np.ndarray, " head"], weights: Float[np.ndarray, " head"], orders: Orders
) -> float:
    """The chance of a weighted sum as far from zero as this, either way, if values are reordered so.

    Twice the smaller of the chances of one as high and of one as low, as `inverted_interval` has it; NaN
    without weights.
    """
    if np.isnan(weights).any():
        return float("nan")
    return two_sided_chance(values[orders] @ weights, float(values @ weights), float(np.abs(values).max()))


def two_sided_chance(drawn: Float[np.ndarray, " draw"], observed: float, scale: float) -> float:
    """Twice the smaller of the chances of a value as high and of one as low; `scale` is that of rounding."""
    return min(1.0, 2 * min(_chance(drawn, observed, scale), _chance(-drawn, -observed, scale)))


def inverted_interval(
    values: Float[np.ndarray, " head"],
    chosen: Bool[np.ndarray, " head"],
    weights: Float[np.ndarray, " head"],
    orders: Orders,
    level: float,
) -> tuple[float, float]:
    """The interval of all shifts of the chosen that the permutation test of `permutation_chance` accepts.

    A shift d is accepted if, with d taken off the chosen, the weighted sum is not extreme among those of
    reordered values (test inversion; Fisher's shift model). Reordering o rejects no d above
    (D - D_o) / (1 - C_o), D and D_o being the sums of the values as they are and reordered, C_o that of
    the reordered choice: the ends are quantiles of these. NaN without weights, infinite where there are too
    few different orders for the level.
    """
    if np.isnan(weights).any():
        return float("nan"), float("nan")
    lag = 1 - chosen.astype(np.float64)[orders] @ weights
    moves = lag > 1e-9
    limits = np.sort((values @ weights - values[orders] @ weights)[moves] / lag[moves])
    always = 1 + int((~moves).sum())  # the observed order, and those that leave the choice as it is
    # The smallest number of limits on one side of d at which the one-sided chance exceeds half of the error.
    needed = int(np.floor((1 - level) / 2 * (1 + len(orders)))) + 1 - always
    if needed <= 0 or needed > len(limits):
        return float("-inf"), float("inf")
    return float(limits[needed - 1]), float(limits[-needed])


def _chance(drawn: Float[np.ndarray, " draw"], observed: float, scale: float) -> float:
    # The observed order is one of those possible (Phipson & Smyth 2010); equal sums differ by rounding.
    return float((1 + (drawn >= observed - 1e-9 * scale).sum()) / (1 + len(drawn)))


def _centred_ranks(values: Float[np.ndarray, " head"], strata: Strata) -> Float[np.ndarray, " head"]:
    ranks = np.empty(len(values))
    for stratum in np.unique(strata):
        inside = strata == stratum
        ranks[inside] = rankdata(values[inside]) - (inside.sum() + 1) / 2
    return ranks
