"""Whether two setups score differently: on other sentences, with other seeds, and with both."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr

from mtl.probes.statistics.paired_scores import BLOCK, DRAWS, Score
from mtl.probes.statistics.resampling import Interval, t_interval

UNKNOWN = (float("nan"), float("nan"))
ROUNDING = 1e-18
"""The variance, in squared points, that rounding may leave between equal scores."""


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
    """Percentile interval of the paired bootstrap over sentences (Koehn 2004)."""
    seeds: Interval
    """Welch's t interval over runs; needs two runs of each setup."""
    both: Interval
    p_sentences: float
    """Two-sided, by approximate randomisation: each sentence's annotations are exchanged (Noreen 1989)."""
    p: float
    """Two-sided, of `both`."""


def compare(
    first: Float[np.ndarray, "first sentence count"],
    second: Float[np.ndarray, "second sentence count"],
    score: Score,
    *,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """Compare the runs of two setups by the counts of the same sentences.

    The model of a run's score on a sample of sentences is mean + run + sample + run-by-sample. The spread of
    runs on these sentences contains the effects of runs and of runs by samples; the bootstrap of the mean
    over runs contains those of samples and of runs by samples. The variance of `both` is the sum of these
    two, less the effect of runs by samples, which the bootstrap of each run around the mean gives. It is at
    least the variance over sentences alone, and its degrees of freedom are Satterthwaite's (1946).
    """
    rng = np.random.default_rng(seed)
    setups = [first.astype(np.float64), second.astype(np.float64)]
    scores = [score(runs.sum(1)) for runs in setups]
    means = [float(values.mean()) for values in scores]
    difference = means[0] - means[1]
    sentences = first.shape[1]
    resampled = [np.empty((len(runs), draws)) for runs in setups]
    as_far = 0
    # Numbers of runs may be unequal, so the mean annotations of the two setups are exchanged.
    total = [runs.mean(0) for runs in setups]
    observed = float(np.diff([float(score(part.sum(0, keepdims=True))[0]) for part in total[::-1]])[0])
    for start in range(0, draws, BLOCK):
        block = slice(start, min(start + BLOCK, draws))
        size = block.stop - block.start
        weights = rng.multinomial(sentences, np.full(sentences, 1 / sentences), size=size).astype(np.float64)
        for values, runs in zip(resampled, setups, strict=True):
            for place, counts in enumerate(runs):
                values[place, block] = score(weights @ counts)
        moved = rng.integers(0, 2, size=(size, sentences)).astype(np.float64) @ (total[1] - total[0])
        by_chance = score(total[0].sum(0) + moved) - score(total[1].sum(0) - moved)
        as_far += int(np.sum(np.abs(by_chance) >= abs(observed) - 1e-9))
    of_difference = resampled[0].mean(0) - resampled[1].mean(0)
    low, high = np.quantile(of_difference, [(1 - level) / 2, (1 + level) / 2])
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
    over_sentences = float(of_difference.var())
    seeds, _ = _student(difference, over_runs, freedom, level)
    # Runs vary at least by the part of runs by sentences; a few runs that agree by chance would hide that.
    both, p = _student(
        difference,
        np.array([*over_runs, max(over_sentences - together, 0.0), max(together - over_runs.sum(), 0.0)]),
        np.array([*freedom, sentences - 1, sentences - 1]),
        level,
    )
    return replace(result, seeds=seeds, both=both, p=p)


def _student(
    estimate: float, variances: Float[np.ndarray, " part"], freedom: np.ndarray, level: float
) -> tuple[Interval, float]:
    """The t interval and two-sided p for a sum of independent variances (Satterthwaite 1946).

    Without any variance there is nothing to judge a difference by: interval and p are NaN. Only if scores are
    equal, the interval is 0 to 0 and p is 1.
    """
    variance = float(variances.sum())
    if variance <= ROUNDING:
        return (UNKNOWN, float("nan")) if abs(estimate) > ROUNDING**0.5 else ((0.0, 0.0), 1.0)
    degrees = variance**2 / float((variances**2 / freedom).sum())
    error = variance**0.5
    p = 2 * float(stdtr(degrees, -abs(estimate) / error))
    return t_interval(estimate, error, degrees, level), p
