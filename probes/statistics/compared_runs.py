"""Whether setups score differently: on other sentences, with other seeds, over the spread of all runs.

What resamples draw are *units*: whole documents where they are known, since sentences of one document are not
independent, and sentences otherwise. Scores follow from sums of counts, so a document is the sum of its
sentences (`Units.sums`).

Runs are not paired by their seeds: if the seed explains nothing, pairing throws away half of the degrees of
freedom. If the seed explains something (`seed_effect`), it is an effect of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, Num
from scipy.special import fdtrc, ndtr, stdtr, stdtrit

from mtl.probes.statistics.significance import Interval, benjamini_hochberg, holm, t_interval
from mtl.tasks.in_words import counted

Score = Callable[[Float[np.ndarray, "draw count"]], Float[np.ndarray, " draw"]]
"""A score from counts summed over sentences, such as F1 from correct, predicted and gold."""

DRAWS = 10_000
"""The default number of resamples. With n of them, p is at least 1 / (n + 1), and adjusting may multiply p by
the number of changes: with 1,000 resamples, a single one of 72 heads could never be significant at 0.05."""
BLOCK = 1000
"""Resamples held in memory at once."""
FEWEST_UNITS = 10
"""With fewer units there is no interval over them: too few show how far units differ."""


@dataclass(frozen=True)
class Units:
    """What resamples draw, and to which of them each sentence belongs."""

    name: Literal["documents", "sentences"]
    of: Int[np.ndarray, " sentence"]
    count: int
    documents: int
    """Documents that are known, whether or not they are the units."""

    def sums(self, counts: Num[np.ndarray, "*other sentence count"]) -> Num[np.ndarray, "*other unit count"]:
        """The counts of each unit, summed over its sentences."""
        if self.name == "sentences":
            return counts
        order = np.argsort(self.of, kind="stable")
        starts = np.searchsorted(self.of[order], np.arange(self.count))
        return np.add.reduceat(counts[..., order, :], starts, axis=-2)

    @property
    def effective(self) -> float:
        """As how many equally large units they count: a few large documents carry most of the variance.

        A document's share of the variance grows with the square of its sentences (Satterthwaite 1946).
        """
        squares = np.bincount(self.of).astype(float) ** 2
        return float(squares.sum() ** 2 / (squares**2).sum())

    def described(self) -> str:
        """The units in words, with the reason if they are sentences."""
        if self.name == "documents":
            alone = self.count - self.documents
            beside = f", and {counted(alone, 'sentence')} without one" if alone else ""
            return f"{counted(self.documents, 'document')}{beside}"
        independent = "sentences, as if all were independent"
        if not self.documents:
            return f"{independent}: the corpus does not say which document they are from"
        if self.documents < FEWEST_UNITS:
            return (
                f"{independent}: they are from {counted(self.documents, 'document')}, too few to be resampled"
            )
        return "sentences, each from a document of its own"


def units_of(documents: Sequence[str]) -> Units:
    """The units of sentences from these documents (empty: unknown; such a sentence is a unit of its own).

    They are the sentences themselves if there are fewer than `FEWEST_UNITS` units otherwise.
    """
    numbers: dict[object, int] = {}
    of = np.array(
        [numbers.setdefault(name or place, len(numbers)) for place, name in enumerate(documents)], np.int64
    )
    known = len({*documents} - {""})
    if FEWEST_UNITS <= len(numbers) < len(documents):
        return Units("documents", of, len(numbers), known)
    return Units("sentences", np.arange(len(documents)), len(documents), known)


def percentile_interval(
    resampled: Float[np.ndarray, "*change draw"], units: int, level: float, effective: float | None = None
) -> tuple[Float[np.ndarray, "*change"], Float[np.ndarray, "*change"]]:
    """The ends of the bootstrap's percentile interval, expanded for few units (Hesterberg 2015, section 3.3).

    The plain one is too narrow by about the factor of a standard deviation over n, not n - 1, and of the
    normal quantile in place of Student's; n is `effective` (default: `units`). NaN with fewer than
    `FEWEST_UNITS` units, and where all resamples are equal: then nothing shows how far the value may vary.
    """
    if units < FEWEST_UNITS:
        nothing = np.full(resampled.shape[:-1], np.nan)
        return nothing, nothing
    n = max(2.0, units if effective is None else effective)
    outside = ndtr(-((n / (n - 1)) ** 0.5) * stdtrit(n - 1, (1 + level) / 2))
    low, high = np.quantile(resampled, [outside, 1 - outside], axis=-1)
    varies = high - low > 1e-9
    return np.where(varies, low, np.nan), np.where(varies, high, np.nan)


@dataclass(frozen=True)
class ScoreLosses:
    """How much a score loses by each of several changes to a model."""

    score: float
    """The score of the unchanged model."""
    loss: Float[np.ndarray, " change"]
    """The score of the unchanged model less that of the changed one."""
    low: Float[np.ndarray, " change"]
    high: Float[np.ndarray, " change"]
    """Ends of the paired bootstrap's interval over units (`percentile_interval`); may be NaN."""
    p: Float[np.ndarray, " change"]
    """Two-sided, by approximate randomisation: the two annotations of a unit are exchanged at random."""
    q: Float[np.ndarray, " change"]
    """p adjusted for all changes of a family (Benjamini and Hochberg 1995): the smallest false discovery rate
    at which a change is significant."""


def score_losses(
    unchanged: Float[np.ndarray, "unit count"] | Int[np.ndarray, "unit count"],
    changed: Float[np.ndarray, "change unit count"] | Int[np.ndarray, "change unit count"],
    score: Score,
    *,
    families: Sequence[Hashable] | None = None,
    effective: float | None = None,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> ScoreLosses:
    """Compare each change with the unchanged model on the same units (Koehn 2004; Noreen 1989).

    Units are independent: documents, or sentences (`Units.sums`). All changes are tested on the same draws.
    `families` has the family of each change; changes of one family are adjusted for each other. Without
    families, all changes are. `effective` is as in `percentile_interval`.
    """
    rng = np.random.default_rng(seed)
    base, variants = unchanged.astype(np.float64), changed.astype(np.float64)
    units = len(base)
    before = float(score(base.sum(0, keepdims=True))[0])
    loss = before - score(variants.sum(1))
    resampled = np.empty((len(variants), draws))
    as_far = np.zeros(len(variants))
    for first in range(0, draws, BLOCK):
        block = min(BLOCK, draws - first)
        weights = rng.multinomial(units, np.full(units, 1 / units), size=block).astype(np.float64)
        exchanged = rng.integers(0, 2, size=(block, units)).astype(np.float64)
        of_base = score(weights @ base)
        for index, variant in enumerate(variants):
            resampled[index, first : first + block] = of_base - score(weights @ variant)
            moved = exchanged @ (variant - base)
            by_chance = score(base.sum(0) + moved) - score(variant.sum(0) - moved)
            # Numbers that are equal in exact arithmetic may differ in the last digits.
            as_far[index] += np.sum(np.abs(by_chance) >= abs(loss[index]) - 1e-9)
    low, high = percentile_interval(resampled, units, level, effective)
    p = (1 + as_far) / (draws + 1)
    q, kinds = np.empty_like(p), list(families or [None] * len(p))
    for kind in dict.fromkeys(kinds):
        members = [index for index, other in enumerate(kinds) if other == kind]
        q[members] = benjamini_hochberg(p[members])
    return ScoreLosses(before, loss, low, high, p, q)


UNKNOWN = (float("nan"), float("nan"))
ROUNDING = 1e-18
"""The variance, in squared points, that rounding may leave between equal scores."""

Runs = Mapping[int, float]
"""The score of a run by its seed; setups may have different seeds."""
SEED_LOOK = 0.05
"""The p of an F test below which seeds count as explaining a part of a study's scores."""


@dataclass(frozen=True)
class Difference:
    """A weighted sum of setups' means; interval and p are NaN if no spread is known."""

    value: float
    low: float
    high: float
    p: float
    """Two-sided."""
    pooled: bool
    """Whether the spread is that of all setups, since no compared one spreads more by itself."""
    seeds: bool = False
    """Whether seeds are an effect of the model."""
    freedom: float = float("nan")
    """Degrees of freedom of the spread."""
    error: float = float("nan")
    """The standard error."""


@dataclass(frozen=True)
class SeedEffect:
    """Whether a seed has the same effect on all setups; NaN if no two setups have two seeds in common."""

    f: float
    p: float


def difference(runs: Mapping[str, Runs], weights: Mapping[str, float], level: float = 0.95) -> Difference:
    """The weighted sum of the means of setups, by Student's t.

    Args:
        runs: by setup the scores of its runs.
        weights: by setup the factor of its mean, such as 1 and -1; all setups are in `runs`.
        level: of the interval.

    A compared setup has the variance of its own runs, or that of the runs of all setups if that is larger:
    few runs that agree by accident claim no precision, and runs of others that agree hide no setup that
    spreads more. Degrees of freedom are Satterthwaite's (1946). Without other setups, each has its own
    variance (Welch 1947). A setup of one run shows no spread of its own: then nothing is known. Seeds are an
    effect of the model beside setups if the weights sum to 0 and `seed_effect` has a p below `SEED_LOOK`.

    Simulated at a nominal 5 % (tests/probes/statistics/test_compared_runs.py): 3 to 4 % if spreads are equal;
    at most 9 % if one setup has half of the others' runs and spreads up to fourfold, also with effects of
    seeds; up to 13 % if it has two runs, and the others six.
    """
    design, scores, setups = _design(runs)
    others = any(len(of_setup) > 1 for name, of_setup in runs.items() if name not in weights)
    with_seeds = others and abs(sum(weights.values())) < 1e-9 and seed_effect(runs).p < SEED_LOOK
    if not with_seeds:
        design = design[:, :setups]
    squares, rank, effects = _fit(design, scores)
    contrast = np.zeros(design.shape[1])
    contrast[:setups] = [weights.get(name, 0.0) for name in runs]
    means = {name: float(np.mean([*runs[name].values()])) for name in weights}
    value = sum(weight * means[name] for name, weight in weights.items())
    if with_seeds:
        value = float(contrast @ effects)
    nothing = Difference(value, *UNKNOWN, float("nan"), pooled=False)
    inverse = np.linalg.pinv(design)
    shares = (contrast @ inverse) ** 2
    residuals, freedoms = (scores - design @ effects) ** 2, 1 - (design * inverse.T).sum(1)
    if min(len(runs[name]) for name in weights) < 2 or squares <= ROUNDING:
        return nothing
    of_all, rest, parts = squares / (len(scores) - rank), float(shares.sum()), []
    for place, name in enumerate(runs):
        own = design[:, place] > 0
        freedom = float(freedoms[own].sum())
        if name in weights and (not others or residuals[own].sum() / freedom > of_all):
            share = float(shares[own].sum())
            parts.append((share * float(residuals[own].sum()) / freedom, freedom))
            rest -= share
    pooled = not parts
    if others:
        parts.append((of_all * rest, len(scores) - rank))
    square = sum(part for part, _ in parts)
    if square <= ROUNDING:
        return nothing
    degrees = square**2 / sum(part**2 / freedom for part, freedom in parts)
    low, high = t_interval(value, square**0.5, degrees, level)
    p = 2 * float(stdtr(degrees, -abs(value) / square**0.5))
    return Difference(value, low, high, p, pooled, with_seeds, degrees, square**0.5)


def deciding_intervals(
    differences: Sequence[Difference], level: float = 0.95
) -> list[tuple[Interval, float]]:
    """For each of a family of differences an interval, and its p after Holm; all intervals hold together.

    They are Bonferroni's. Where Holm's test finds a difference and such an interval would go beyond 0, it
    ends there (Strassburger and Bretz 2008). So an interval excludes 0 exactly if its p is at most 1 - level.
    In simulations of five differences, all five hold in 95 to 96 %. Differences without a known spread do not
    count, and have NaN.
    """
    p = holm(np.array([made.p for made in differences], dtype=float))
    known = int((~np.isnan(p)).sum())
    found: list[tuple[Interval, float]] = []
    for made, corrected in zip(differences, p.tolist(), strict=True):
        low, high = UNKNOWN
        if not math.isnan(corrected):
            low, high = t_interval(made.value, made.error, made.freedom, 1 - (1 - level) / known)
            if corrected <= 1 - level:
                low, high = (max(low, 0.0), high) if made.value > 0 else (low, min(high, 0.0))
        found.append(((low, high), corrected))
    return found


def seed_effect(runs: Mapping[str, Runs]) -> SeedEffect:
    """The F test of seeds beside setups (an additive model of two factors)."""
    design, scores, setups = _design(runs)
    without, rank_without, _ = _fit(design[:, :setups], scores)
    squares, rank, _ = _fit(design, scores)
    freedom = len(scores) - rank
    if rank == rank_without or freedom == 0 or squares <= 1e-12 * max(without, 1e-12):
        return SeedEffect(float("nan"), float("nan"))
    f = (without - squares) / (rank - rank_without) / (squares / freedom)
    return SeedEffect(f, float(fdtrc(rank - rank_without, freedom, f)))


def _design(
    runs: Mapping[str, Runs],
) -> tuple[Float[np.ndarray, "run effect"], Float[np.ndarray, " run"], int]:
    """Indicators of setups, then of seeds; the scores; and how many setups there are."""
    of_setups = [place for place, by_seed in enumerate(runs.values()) for _ in by_seed]
    of_seeds = [seed for by_seed in runs.values() for seed in by_seed]
    column = {seed: len(runs) + place for place, seed in enumerate(dict.fromkeys(of_seeds))}
    design = np.zeros((len(of_seeds), len(runs) + len(column)))
    rows = np.arange(len(of_seeds))
    design[rows, of_setups] = design[rows, [column[seed] for seed in of_seeds]] = 1
    return design, np.array([score for by_seed in runs.values() for score in by_seed.values()]), len(runs)


def _fit(
    design: Float[np.ndarray, "run effect"], scores: Float[np.ndarray, " run"]
) -> tuple[float, int, Float[np.ndarray, " effect"]]:
    """The sum of squared residuals, the rank of the design, and the effects."""
    effects, _, rank, _ = np.linalg.lstsq(design, scores)
    return float(((scores - design @ effects) ** 2).sum()), int(rank), effects


@dataclass(frozen=True)
class Comparison:
    """The difference of two setups' mean scores on the same sentences; unavailable intervals are NaN.

    Each interval answers a question of its own. `sentences`: what if these runs were scored on other
    sentences of the same kind? `seeds`: what if other runs were trained, and scored on these sentences?
    `both`: what if other runs were scored on other sentences?
    """

    first: float
    """Mean score of the runs of the first setup."""
    second: float
    difference: float
    """The first less the second."""
    sentences: Interval
    """The paired bootstrap's interval over units (Koehn 2004; `percentile_interval`)."""
    seeds: Interval
    """Welch's t interval over runs; needs two runs of each setup."""
    both: Interval
    p_sentences: float
    """Two-sided, by approximate randomisation: each unit's annotations are exchanged (Noreen 1989)."""
    p: float
    """Two-sided, of `both`."""


def compare_setups(
    first: Float[np.ndarray, "first unit count"],
    second: Float[np.ndarray, "second unit count"],
    score: Score,
    *,
    effective: float | None = None,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """Compare the runs of two setups by the counts of the same units: documents, or sentences (`Units.sums`).

    The model of a run's score on a sample of sentences is mean + run + sample + run-by-sample. The spread of
    runs on these sentences contains the effects of runs and of runs by samples; the bootstrap of the mean
    over runs contains those of samples and of runs by samples. The variance of `both` is the sum of these
    two, less the effect of runs by samples, which the bootstrap of each run around the mean gives. It is at
    least the variance over units alone, and its degrees of freedom are Satterthwaite's (1946). `effective` is
    as in `percentile_interval`.
    """
    rng = np.random.default_rng(seed)
    setups = [first.astype(np.float64), second.astype(np.float64)]
    scores = [score(runs.sum(1)) for runs in setups]
    means = [float(values.mean()) for values in scores]
    difference = means[0] - means[1]
    units = first.shape[1]
    resampled = [np.empty((len(runs), draws)) for runs in setups]
    as_far = 0
    # Numbers of runs may be unequal, so the mean annotations of the two setups are exchanged.
    total = [runs.mean(0) for runs in setups]
    observed = float(np.diff([float(score(part.sum(0, keepdims=True))[0]) for part in total[::-1]])[0])
    for start in range(0, draws, BLOCK):
        block = slice(start, min(start + BLOCK, draws))
        size = block.stop - block.start
        weights = rng.multinomial(units, np.full(units, 1 / units), size=size).astype(np.float64)
        for values, runs in zip(resampled, setups, strict=True):
            for place, counts in enumerate(runs):
                values[place, block] = score(weights @ counts)
        moved = rng.integers(0, 2, size=(size, units)).astype(np.float64) @ (total[1] - total[0])
        by_chance = score(total[0].sum(0) + moved) - score(total[1].sum(0) - moved)
        as_far += int(np.sum(np.abs(by_chance) >= abs(observed) - 1e-9))
    of_difference = resampled[0].mean(0) - resampled[1].mean(0)
    low, high = percentile_interval(of_difference, units, level, effective)
    result = Comparison(
        first=means[0],
        second=means[1],
        difference=difference,
        sentences=(float(low), float(high)),
        seeds=UNKNOWN,
        both=UNKNOWN,
        p_sentences=(1 + as_far) / (draws + 1),
        p=float("nan"),
    )
    if min(map(len, setups)) < 2:
        return result
    # The variance of each setup's mean over runs, and the part of runs by sentences.
    over_runs = np.array([values.var(ddof=1) / len(values) for values in scores])
    together = sum(
        float((values - values.mean(0)).var(axis=1).sum() / (len(values) - 1) / len(values))
        for values in resampled
    )
    freedom = np.array([len(values) - 1 for values in scores])
    n = max(2.0, units if effective is None else effective)
    unbiased = n / (n - 1)
    over_units, together = float(of_difference.var()) * unbiased, together * unbiased
    seeds, _ = _student(difference, over_runs, freedom, level)
    # Runs vary at least by the part of runs by sentences; a few runs that agree by chance would hide that.
    both, p = UNKNOWN, float("nan")
    if units >= FEWEST_UNITS:
        both, p = _student(
            difference,
            np.array([*over_runs, max(over_units - together, 0.0), max(together - over_runs.sum(), 0.0)]),
            np.array([*freedom, n - 1, n - 1]),
            level,
        )
    return replace(result, seeds=seeds, both=both, p=p)


def _student(
    estimate: float, variances: Float[np.ndarray, " part"], freedom: np.ndarray, level: float
) -> tuple[Interval, float]:
    """The t interval and two-sided p for a sum of independent variances (Satterthwaite 1946).

    Without any variance there is nothing to judge a difference by: interval and p are NaN. Only if scores are
    equal, p is 1.
    """
    variance = float(variances.sum())
    if variance <= ROUNDING:
        return UNKNOWN, float("nan") if abs(estimate) > ROUNDING**0.5 else 1.0
    degrees = variance**2 / float((variances**2 / freedom).sum())
    error = variance**0.5
    p = 2 * float(stdtr(degrees, -abs(estimate) / error))
    return t_interval(estimate, error, degrees, level), p
