"""Differences between setups' mean scores, with the spread of runs taken from all setups of a study.

Runs are not paired by their seeds. Where the seed explains nothing, pairs throw half of the degrees of
freedom away; where it explains something, the intervals here are wider than they need be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import fdtrc, stdtr

from mtl.probes.statistics.resampling import t_interval

Runs = Float[np.ndarray, " _"]
"""A score per run; setups may have different numbers of runs."""
LOOK = 0.2
"""The p of an F test at which the setups compared count as spreading more than the rest. With it intervals of
95 % cover 0.91 to 0.97 where spreads differ up to fourfold, and 0.96 where they are equal (simulated in
tests/probes/statistics/test_spread_of_runs.py); with 0.05, 0.85 and less."""


@dataclass(frozen=True)
class Difference:
    """A weighted sum of setups' means; interval and p are NaN where no spread is known."""

    value: float
    low: float
    high: float
    p: float
    """Two-sided."""
    pooled: bool
    """Whether the spread is that of all setups, and not of those compared alone (Welch 1947)."""


def difference(runs: Mapping[str, Runs], weights: Mapping[str, float], level: float = 0.95) -> Difference:
    """The weighted sum of the means of setups, by Student's t.

    Args:
        runs: by setup the scores of its runs, a number each.
        weights: by setup what its mean is multiplied by, such as 1 and -1; all are in `runs`.
        level: of the interval.

    The variance of a run is the mean of the setups' variances, weighted by their degrees of freedom. Where
    the setups compared spread more than the rest (`LOOK`), or there is no rest, each has its own variance,
    and the degrees of freedom are Satterthwaite's (1946).
    """
    value = sum(weight * float(runs[name].mean()) for name, weight in weights.items())
    shares = np.array([weight**2 / len(runs[name]) for name, weight in weights.items()])
    own = [runs[name] for name in weights]
    rest = [scores for name, scores in runs.items() if name not in weights]
    own_variance, own_freedom = _spread(own)
    rest_variance, rest_freedom = _spread(rest)
    pooled = (
        rest_freedom > 0
        and rest_variance > 0
        and (
            own_freedom == 0 or float(fdtrc(own_freedom, rest_freedom, own_variance / rest_variance)) >= LOOK
        )
    )
    if pooled:
        variance, freedom = _spread([*own, *rest])
        square, degrees = variance * float(shares.sum()), float(freedom)
    elif min(map(len, own)) < 2 or own_variance == 0:
        return Difference(value, float("nan"), float("nan"), float("nan"), pooled=False)
    else:
        parts = shares * np.array([scores.var(ddof=1) for scores in own])
        square = float(parts.sum())
        degrees = square**2 / float((parts**2 / [len(scores) - 1 for scores in own]).sum())
    error = square**0.5
    low, high = t_interval(value, error, degrees, level)
    return Difference(value, low, high, 2 * float(stdtr(degrees, -abs(value) / error)), pooled)


def _spread(setups: list[Runs]) -> tuple[float, int]:
    """The pooled variance of a run about the mean of its setup, and its degrees of freedom."""
    freedom = sum(len(scores) - 1 for scores in setups)
    squares = sum(float(((scores - scores.mean()) ** 2).sum()) for scores in setups)
    return (squares / freedom if freedom else 0.0), freedom
