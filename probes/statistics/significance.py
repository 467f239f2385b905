"""Tools of tests: corrected p values, resampling, rank correlations over heads, tests within strata."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int
from scipy.special import ndtr, ndtri, stdtrit


def holm(p: Float[np.ndarray, " test"]) -> Float[np.ndarray, " test"]:
    """p corrected after Holm (1979), which is valid however the tests depend on each other."""
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    corrected = np.empty_like(stepped)
    corrected[order] = stepped
    return corrected


def benjamini_hochberg(p: Float[np.ndarray, " test"]) -> Float[np.ndarray, " test"]:
    """The least false discovery rate at which each test is rejected (Benjamini & Hochberg 1995)."""
    falling = np.argsort(-p)
    corrected = np.empty_like(p)
    corrected[falling] = np.minimum.accumulate(p[falling] * len(p) / np.arange(len(p), 0, -1)).clip(max=1)
    return corrected


Interval = tuple[float, float]


def student(values: Float[np.ndarray, " seed"], level: float = 0.95) -> Interval:
    """Student's interval of the mean over seeds; NaN for a single seed, and if all values are equal."""
    if len(values) < 2 or np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())):
        return float("nan"), float("nan")
    error = float(values.std(ddof=1)) / len(values) ** 0.5
    return t_interval(float(values.mean()), error, len(values) - 1, level)


def t_interval(mean: float, error: float, freedom: int | float, level: float) -> Interval:
    """Student's interval from a mean, its standard error and the degrees of freedom."""
    reach = float(stdtrit(freedom, (1 + level) / 2)) * error
    return mean - reach, mean + reach


def paired(losses: Float[np.ndarray, " seed"], level: float) -> tuple[float, float, float]:
    """Student's interval of the mean, and the two-sided p by exchanging signs; NaN for a single seed."""
    seeds = len(losses)
    if seeds < 2:
        return float("nan"), float("nan"), float("nan")
    # All 2^n exchanges up to 12 seeds, else 4,096 at random, the observed one among them.
    if seeds <= 12:
        signs = np.array(list(itertools.product((1, -1), repeat=seeds)))
    else:
        signs = np.random.default_rng(0).choice((1, -1), (4096, seeds))
        signs[0] = 1
    drawn = np.abs(signs @ losses)
    p = float((drawn >= abs(losses.sum()) - 1e-12).mean())
    return *student(losses, level), p


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


Values = Float[np.ndarray, " head"]
Weights = Float[np.ndarray, "draw head"]
Strata = Int[np.ndarray, " head"]
LEVEL = 0.95
DRAWS = 1000
MANY = 1024
"""Heads in a stratum above which ranks are found by sorting; for fewer, a matrix product is faster."""


CANNOT_TELL: Final = "cannot tell"
"""The word of a test for which runs are missing, or which they leave open."""


@dataclass(frozen=True)
class Finding:
    """What a test says: its numbers, its word and the reason for the word."""

    word: str
    reason: str
    table: pl.DataFrame = field(compare=False)

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}"


class Estimate(NamedTuple):
    """A value and the ends of its interval."""

    value: float
    low: float
    high: float


def head_weights(strata: Strata, draws: int, rng: np.random.Generator) -> Weights:
    """How often each head is in each resample: heads are drawn with replacement within their stratum.

    Layers are those of the model and not a sample of layers, but heads of a layer differ by chance. So every
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
    """Ranks within strata of heads that occur as often as `weights` say, less the mean rank of the stratum.

    Equal values share the mean of their ranks, and so do repetitions of a head in a draw. So a rank less the
    mean is half of how many more heads are below a head than above it. The result is written to `out`, if
    given.
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
        # Sums of halves, which are exact in single precision.
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


def centred(values: Values, weights: Weights) -> Weights:
    """Values less their weighted mean; if values are equal, what rounding leaves is set to 0."""
    left = values - weights @ values[:, None] / weights.sum(1, keepdims=True)
    return np.where(np.abs(left) > 1e-12 * np.abs(values).max(initial=0.0), left, 0.0)


def correlation(one: Weights, other: Weights, weights: Weights) -> Float[np.ndarray, " draw"]:
    """The correlation over heads of centred ranks or values; NaN if either does not vary."""

    def product(left: Weights, right: Weights) -> Float[np.ndarray, " draw"]:
        return np.einsum("hd,hd,hd->d", weights.T, left.T, right.T)

    scale = np.sqrt(product(one, one) * product(other, other))
    with np.errstate(invalid="ignore"):
        return product(one, other) / np.where(scale > 0, scale, np.nan)


def estimate(value: float, drawn: Float[np.ndarray, " draw"]) -> Estimate:
    """The value with its bias-corrected percentile interval (Efron 1981), over the draws that have a value.

    A resample repeats heads, and the ranks that they share bring a high correlation nearer to zero. In
    simulations of three runs of 6 layers by 12 heads with a correlation within layers of 0.8, the plain
    percentile interval covered it in 83 to 86 of 100 worlds, and this one in 93 to 98. `value` and `drawn`
    may be NaN. If all draws are equal, there is no interval: nothing shows how far the value may vary.
    """
    known = drawn[~np.isnan(drawn)]
    if np.isnan(value) or len(known) < 2 or np.ptp(known) <= 1e-12:
        return Estimate(value, float("nan"), float("nan"))
    equal = np.abs(known - value) <= 1e-12  # correlations of ranks that are equal differ by rounding
    below = np.mean(((known < value) & ~equal) + 0.5 * equal)
    bias = ndtri(np.clip(below, 0.5 / len(known), 1 - 0.5 / len(known)))
    ends = ndtr(2 * bias + ndtri([(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    low, high = np.quantile(known, ends)
    return Estimate(value, float(low), float(high))


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
