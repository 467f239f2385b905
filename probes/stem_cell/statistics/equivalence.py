"""Whether a remedy brings joint training back to single-task scores, over runs paired by seed.

The run is the unit: every test is on differences between two runs of the same seed, by Student's t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr, stdtrit

from mtl.probes.statistics.resampling import t_interval
from mtl.tasks.in_words import counted

LEVEL = 0.05
"""Of every one-sided test."""
MARGINS = {10: 0.5, 6: 1.0}
"""The margin of equivalence in points by the least number of runs that it is for, fixed before any run."""
BAND = 0.1
"""Share of the gap below which a remedy's contrast counts as none."""
Reached = Literal["reaches", "differs", "cannot tell"]
Helps = Literal["supported", "refuted", "cannot tell"]


@dataclass(frozen=True)
class Equivalence:
    """Whether a remedy reaches the single tasks; all figures in points."""

    runs: int
    difference: float
    """Scores of the remedy less those of single tasks, mean over runs."""
    low: float
    high: float
    """Ends of the 90 % interval, which lies within the margin where both one-sided tests at 5 % reject."""
    p: float
    """The larger p of the two one-sided tests."""
    margin: float
    word: Reached
    """`reaches`: the difference is within the margin; `differs`: beyond it, above or below by its sign."""


@dataclass(frozen=True)
class Recovery:
    """The share of what joint training loses that a remedy brings back."""

    share: float | None
    """(remedy - joint) / (single - joint), means over runs; null where it is not certain that any is lost."""
    low: float | None
    high: float | None
    """Ends of Fieller's 95 % interval."""


@dataclass(frozen=True)
class Contrast:
    """One condition's scores less those of another, in points."""

    runs: int
    difference: float
    low: float
    high: float
    """Ends of the 90 % interval."""
    p: float
    """One-sided: of a difference above 0."""
    word: Helps
    """`supported`: p is at most 5 %; `refuted`: there is a gap, and the interval ends below a tenth of it."""


def margin_for(runs: int) -> float:
    """The margin fixed for this number of runs; raises `ValueError` where they are too few for a word."""
    for least, margin in sorted(MARGINS.items(), reverse=True):
        if runs >= least:
            return margin
    raise ValueError(
        f"{counted(runs, 'seed is', 'seeds are')} too few to say whether a single task is reached: "
        f"train {min(MARGINS)}"
    )


def equivalence(
    remedy: Float[np.ndarray, " run"], single: Float[np.ndarray, " run"], margin: float | None = None
) -> Equivalence:
    """Two one-sided tests (Schuirmann 1987) of scores paired by seed, in points.

    `margin` defaults to 1 point from 6 runs and half a point from 10. Raises `ValueError` for fewer than 6
    runs without a margin, fewer than 2 with one, and a margin that is not above 0.
    """
    limit = margin_for(len(remedy)) if margin is None else margin
    if not limit > 0:
        raise ValueError(f"a margin of {limit:g} points: use one above 0")
    differences = _paired(remedy, single)
    mean, error, freedom = _moments(differences)
    low, high = t_interval(mean, error, freedom, 1 - 2 * LEVEL)
    p = max(_p_above(mean + limit, error, freedom), _p_above(limit - mean, error, freedom))
    word: Reached = "cannot tell"
    if p <= LEVEL:
        word = "reaches"
    elif low > limit or high < -limit:
        word = "differs"
    return Equivalence(len(differences), mean, low, high, p, limit, word)


def recovery(
    remedy: Float[np.ndarray, " run"], joint: Float[np.ndarray, " run"], single: Float[np.ndarray, " run"]
) -> Recovery:
    """The recovered share with its interval over seeds (Fieller 1954), the same seeds in all three.

    Null where the 95 % interval of what joint training loses holds 0: then the ratio has no bounded interval,
    and there may be nothing to bring back. Raises `ValueError` for fewer than 2 runs.
    """
    gained, lost = _paired(remedy, joint), _paired(single, joint)
    runs = len(gained)
    quantile = float(stdtrit(runs - 1, 0.975)) ** 2
    covariance = np.cov(gained, lost, ddof=1) / runs
    above, below = float(gained.mean()), float(lost.mean())
    a = below**2 - quantile * covariance[1, 1]
    if a <= 0:
        return Recovery(None, None, None)
    b = above * below - quantile * covariance[0, 1]
    c = above**2 - quantile * covariance[0, 0]
    half = math.sqrt(max(b**2 - a * c, 0.0))
    return Recovery(above / below, float((b - half) / a), float((b + half) / a))


def contrast(remedy: Float[np.ndarray, " run"], placebo: Float[np.ndarray, " run"], gap: float) -> Contrast:
    """Whether a remedy does more than its placebo, one-sided, over runs paired by seed.

    Args:
        remedy: the mean of the tasks' scores, in points, per run.
        placebo: the same for the other condition, the same seeds.
        gap: what joint training loses in that mean, in points; below a tenth of it an effect counts as none.

    Raises:
        ValueError: for fewer than 2 runs.
    """
    differences = _paired(remedy, placebo)
    mean, error, freedom = _moments(differences)
    low, high = t_interval(mean, error, freedom, 1 - 2 * LEVEL)
    p = _p_above(mean, error, freedom)
    word: Helps = "cannot tell"
    if p <= LEVEL:
        word = "supported"
    elif gap > 0 and high < BAND * gap:
        word = "refuted"
    return Contrast(len(differences), mean, low, high, p, word)


def _paired(one: Float[np.ndarray, " run"], other: Float[np.ndarray, " run"]) -> Float[np.ndarray, " run"]:
    if len(one) < 2:
        raise ValueError("one seed has no spread: train 2 or more")
    return np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64)


def _moments(differences: Float[np.ndarray, " run"]) -> tuple[float, float, int]:
    """The mean, its standard error and the degrees of freedom."""
    runs = len(differences)
    return float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(runs), runs - 1


def _p_above(mean: float, error: float, freedom: int) -> float:
    """One-sided p of a mean above 0."""
    if error == 0:
        return 0.0 if mean > 0 else 1.0
    return float(stdtr(freedom, -mean / error))
