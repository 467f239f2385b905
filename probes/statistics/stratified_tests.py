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
    """The chance of a weighted sum as high as this if values are reordered so; NaN without weights."""
    if np.isnan(weights).any():
        return float("nan")
    return _chance(values[orders] @ weights, float(values @ weights), float(np.abs(values).max()))


def _chance(drawn: Float[np.ndarray, " draw"], observed: float, scale: float) -> float:
    # The observed order is one of those possible (Phipson & Smyth 2010); equal sums differ by rounding.
    return float((1 + (drawn >= observed - 1e-9 * scale).sum()) / (1 + len(drawn)))


def _centred_ranks(values: Float[np.ndarray, " head"], strata: Strata) -> Float[np.ndarray, " head"]:
    ranks = np.empty(len(values))
    for stratum in np.unique(strata):
        own = strata == stratum
        ranks[own] = rankdata(values[own]) - (own.sum() + 1) / 2
    return ranks
