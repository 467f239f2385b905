"""Whether a remedy brings joint training back to single-task scores, and does more than its placebo.

Scores are of one task, by condition and seed. Every number is a weighted sum of the conditions' means, with
the spread of all of them (`mtl.probes.statistics.spread_of_runs.difference`). A margin is half of what
sharing costs; this cost is itself part of the sum that is tested, so its error counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import nctdtr, stdtrit

from mtl.probes.statistics.spread_of_runs import Difference, Runs, difference

LEVEL = 0.05
"""Of every one-sided test."""
MARGIN = 0.5
"""The margin as a share of what sharing costs: a remedy that is nearer than this to the single task reaches
it, and one that is not better than its placebo by this much does not help. Fixed on 2026-11-26, after the
runs of docs/results/remedy.md."""
SINGLE, JOINT = "single", "A"
"""Single-task runs, and joint ones without a remedy."""
Reached = Literal["reaches", "differs", "cannot tell"]
Helps = Literal["supported", "refuted", "cannot tell"]


@dataclass(frozen=True)
class Equivalence:
    """Whether a remedy reaches the single task."""

    difference: Difference
    """Scores of the remedy less those of the single task, in points, with the 90 % interval."""
    margin: float
    """Half of what sharing costs, as estimated."""
    p: float
    """The larger p of the two one-sided tests."""
    word: Reached
    """`reaches`: the difference is within the margin; `differs`: it is beyond the margin, above or below."""


@dataclass(frozen=True)
class Recovery:
    """The share of what joint training loses that a remedy brings back."""

    share: float | None
    """(remedy - joint) / (single - joint), means over runs; `None` if it is not certain that any is lost."""
    low: float | None
    high: float | None
    """Ends of Fieller's 95 % interval."""


@dataclass(frozen=True)
class Contrast:
    """One condition's scores less those of another."""

    difference: Difference
    """In points, with the 90 % interval."""
    p: float
    """One-sided: of a difference above 0."""
    p_less: float
    """One-sided: of a difference below half of what sharing costs. NaN without single and joint runs."""


def equivalence(runs: Mapping[str, Runs], remedy: str) -> Equivalence:
    """Two one-sided tests (Schuirmann 1987) of a remedy against half of what sharing costs on either side.

    A remedy reaches the single task if it is above the middle of joint and single runs, and by no more than
    as much above the single runs. The word is *cannot tell* if it is not certain that sharing costs anything.
    """
    found = difference(runs, {remedy: 1.0, SINGLE: -1.0}, 1 - 2 * LEVEL)
    cost = difference(runs, {SINGLE: 1.0, JOINT: -1.0})
    # How far the remedy is above the middle, and how far it is below a point as much above the single task.
    below = difference(runs, {remedy: 1.0, SINGLE: MARGIN - 1, JOINT: -MARGIN})
    above = difference(runs, {remedy: -1.0, SINGLE: 1 + MARGIN, JOINT: -MARGIN})
    p = float(np.maximum(below.above(), above.above()))
    word: Reached = "cannot tell"
    if cost.above() <= LEVEL:
        if p <= LEVEL:
            word = "reaches"
        elif 1 - p <= LEVEL:
            word = "differs"
    return Equivalence(found, MARGIN * cost.value, p, word)


def recovery(runs: Mapping[str, Runs], remedy: str) -> Recovery:
    """The recovered share with its interval (Fieller 1954).

    All is `None` if the 95 % interval of what joint training loses holds 0: then the ratio has no bounded
    interval, and there may be nothing to bring back.
    """

    def beyond(share: float) -> Difference:
        """The gain less this share of the loss."""
        return difference(runs, {remedy: 1.0, JOINT: share - 1, SINGLE: -share})

    gained, lost = beyond(0.0).value, difference(runs, {SINGLE: 1.0, JOINT: -1.0}).value
    least, most = beyond(-1.0).error ** 2, beyond(1.0).error ** 2
    # The squared error is constant + linear * share + square * share^2.
    constant, linear = beyond(0.0).error ** 2, (most - least) / 2
    square = (most + least) / 2 - constant
    quantile = float(stdtrit(beyond(gained / lost if lost else 0.0).freedom, 0.975)) ** 2
    a = lost**2 - quantile * square
    if not a > 0:
        return Recovery(None, None, None)
    b = gained * lost + quantile * linear / 2
    c = gained**2 - quantile * constant
    half = math.sqrt(max(b**2 - a * c, 0.0))
    return Recovery(gained / lost, (b - half) / a, (b + half) / a)


def contrast(runs: Mapping[str, Runs], remedy: str, placebo: str) -> Contrast:
    """Whether a remedy does more than its placebo, and whether by less than half of what sharing costs."""
    found = difference(runs, {remedy: 1.0, placebo: -1.0}, 1 - 2 * LEVEL)
    p_less = float("nan")
    if {SINGLE, JOINT} <= runs.keys():
        lacking = {placebo: 1.0, remedy: -1.0, SINGLE: MARGIN, JOINT: -MARGIN}
        p_less = difference(runs, lacking).above()
    return Contrast(found, found.above(), p_less)


def word_on(p: float, p_less: float) -> Helps:
    """The word by the two one-sided p values of a `Contrast`; *supported* comes first."""
    if p <= LEVEL:
        return "supported"
    return "refuted" if p_less <= LEVEL else "cannot tell"


def power(found: Difference, runs: float | int, effect: float, seeds: int) -> float:
    """The chance that `contrast` finds a true `effect` (in points) with this number of seeds per condition.

    `found` is a difference of two conditions with `runs` runs each; its spread is taken as the true one.
    """
    if not runs > 1:
        return float("nan")
    error = found.error * math.sqrt(runs / seeds)
    freedom = found.freedom * (seeds - 1) / (runs - 1)
    return 1 - float(nctdtr(freedom, effect / error, stdtrit(freedom, 1 - LEVEL)))
