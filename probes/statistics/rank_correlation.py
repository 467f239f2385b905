"""Correlations over heads, with intervals by a bootstrap that keeps each layer's number of heads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr, ndtri

Values = Float[np.ndarray, " head"]
Weights = Float[np.ndarray, "draw head"]
Strata = Int[np.ndarray, " head"]
LEVEL = 0.95
DRAWS = 1000
MANY = 1024
"""Heads of a stratum above which ranks are found by sorting; below, a product of matrices is faster."""


class Estimate(NamedTuple):
    """A value and the ends of its interval."""

    value: float
    low: float
    high: float


def head_weights(strata: Strata, draws: int, rng: np.random.Generator) -> Weights:
    """How often each head is in each resample: heads are drawn with replacement within their stratum.

    Layers are the model's own and not a sample of layers; heads of a layer differ by chance. So every
    resample has as many heads of a layer as the model.
    """
    by_head = np.empty((len(strata), draws))  # heads are picked often, draws never
    for stratum in np.unique(strata):
        inside = np.flatnonzero(strata == stratum)
        by_head[inside] = rng.multinomial(len(inside), np.full(len(inside), 1 / len(inside)), size=draws).T
    return by_head.T


def centred_ranks(
    values: Values, weights: Weights, strata: Strata, out: Float[np.ndarray, "head draw"] | None = None
) -> Weights:
    """Ranks within strata of heads that occur as often as `weights` say, less the stratum's mean rank.

    Equal values share the mean of their ranks, and so do the copies of a head. So a rank less the mean is
    half of how many more heads are below a head than above it. The result is written to `out`, if given.
    """
    ranks = np.empty((len(values), len(weights))) if out is None else out
    counts = weights.T.astype(np.float32, copy=False)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        together = slice(members[0], members[-1] + 1)
        inside = together if len(members) == together.stop - together.start else members
        if len(members) > MANY:
            ranks[inside] = _by_sorting(values[inside], weights.T[inside])
            continue
        # Sums of halves, exact in half the bits.
        above = np.greater.outer(values[inside], values[inside]).astype(np.float32)
        ranks[inside] = (above - above.T) / 2 @ counts[inside]
    return ranks.T


def _by_sorting(values: Values, weights: Float[np.ndarray, "head draw"]) -> Float[np.ndarray, "head draw"]:
    """The centred ranks of one stratum without a matrix of all pairs of its heads."""
    order = np.argsort(values, kind="stable")
    counted = np.zeros((len(values) + 1, weights.shape[1]))
    np.cumsum(weights[order], axis=0, out=counted[1:])
    starts = np.append(True, values[order][1:] != values[order][:-1])
    edges = np.append(np.flatnonzero(starts), len(starts))
    middles = (counted[edges[:-1]] + counted[edges[1:]]) / 2
    ranks = np.empty_like(weights, dtype=np.float64)
    ranks[order] = middles[np.cumsum(starts) - 1] - counted[-1] / 2
    return ranks


def spearman(one: Values, other: Values, weights: Weights, strata: Strata) -> Float[np.ndarray, " draw"]:
    """Spearman's correlation of ranks taken within strata; NaN where either does not vary."""
    return correlation(centred_ranks(one, weights, strata), centred_ranks(other, weights, strata), weights)


def centred(values: Values, weights: Weights) -> Weights:
    """Values less their weighted mean; what rounding leaves of equal values is set to 0."""
    left = values - weights @ values[:, None] / weights.sum(1, keepdims=True)
    return np.where(np.abs(left) > 1e-12 * np.abs(values).max(initial=0.0), left, 0.0)


def correlation(one: Weights, other: Weights, weights: Weights) -> Float[np.ndarray, " draw"]:
    """The correlation over heads of centred ranks or values; NaN where either does not vary."""

    def product(left: Weights, right: Weights) -> Float[np.ndarray, " draw"]:
        return np.einsum("hd,hd,hd->d", weights.T, left.T, right.T)

    scale = np.sqrt(product(one, one) * product(other, other))
    with np.errstate(invalid="ignore"):
        return product(one, other) / np.where(scale > 0, scale, np.nan)


def estimate(value: float, drawn: Float[np.ndarray, " draw"]) -> Estimate:
    """The figure with its bias-corrected percentile interval (Efron 1981), over the draws that have a value.

    A resample repeats heads, and their shared ranks bring a high correlation nearer to zero. In simulations
    of three runs of 6 layers by 12 heads the plain percentile interval of a correlation within layers of 0.8
    covered it in 83 to 86 of 100 worlds, this one in 93 to 98. `value` and `drawn` may be NaN.
    """
    known = drawn[~np.isnan(drawn)]
    if np.isnan(value) or len(known) < 2:
        return Estimate(value, float("nan"), float("nan"))
    equal = np.abs(known - value) <= 1e-12  # correlations of ranks that are equal differ by rounding
    below = np.mean(((known < value) & ~equal) + 0.5 * equal)
    bias = ndtri(np.clip(below, 0.5 / len(known), 1 - 0.5 / len(known)))
    ends = ndtr(2 * bias + ndtri([(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    low, high = np.quantile(known, ends)
    return Estimate(value, float(low), float(high))
