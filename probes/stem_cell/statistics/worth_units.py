"""The units in which the worth of heads is compared between runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float
from scipy.special import ndtri

from mtl.tasks.in_words import counted

Worth = Float[np.ndarray, "*many cell"]
"""Heads of one run and task along the last axis."""


@dataclass(frozen=True)
class Unit:
    """How worth becomes a number that can be compared between runs."""

    name: str
    """As tables and figures print it."""
    scaled: Callable[[Worth], Worth]
    """The worth of all heads of a run and task in this unit; raises `ValueError` for what it cannot hold."""
    multiplicative: bool
    """Whether the unit is of logs, so that a difference is a share of worth."""


def logs(worth: Worth) -> Worth:
    """Natural logarithms; raises `ValueError` for a head that is worth nothing, since there is no log of 0.

    An open head always has some importance; exact zeros are heads that were closed or cut, and a floor for
    them would decide the result by its own size.
    """
    bad = int((~(np.isfinite(worth) & (worth > 0))).sum())
    if bad:
        heads = "1 head has" if bad == 1 else f"{counted(bad, 'head has', 'heads have')}"
        raise ValueError(
            f"{heads} importance 0 or none (closed or cut heads): logs need a model with all heads open; "
            "measure with --masks=false, or leave cut runs out"
        )
    return np.log(worth)


def standardised_logs(worth: Worth) -> Worth:
    """Logs less their mean over all heads of the run and task, divided by their standard deviation.

    So a partner has no effect if it only scales what all heads are worth, or only widens or narrows its
    spread.
    """
    return _standardised(logs(worth), "importance")


def standardised_points(worth: Worth) -> Worth:
    """The same for points themselves, which may be negative.

    They are sharper than ranks, in which heads that are worth nothing take as much room as others.
    """
    if not np.isfinite(worth).all():
        raise ValueError("some heads have no worth: measure the run again")
    return _standardised(worth, "worth")


def _standardised(values: Worth, measure: str) -> Worth:
    spread = values.std(-1, keepdims=True)
    if (spread <= 1e-12).any():
        raise ValueError(f"all heads of a run have the same {measure}: there is nothing to compare")
    return (values - values.mean(-1, keepdims=True)) / spread


def log_spread(worth: Worth) -> Float[np.ndarray, "*many"]:
    """The standard deviation of logs over all heads of each run and task."""
    return logs(worth).std(-1)


def normal_scores(worth: Worth) -> Worth:
    """Van der Waerden's scores: ranks over all heads of the run and task as quantiles of a normal.

    For worth that may be negative, such as the score lost by ablation; equal values have equal scores.
    """
    if not np.isfinite(worth).all():
        raise ValueError("some heads have no worth: measure the run again")
    ranks = np.apply_along_axis(lambda heads: pl.Series(heads).rank().to_numpy(), -1, worth)
    return ndtri(ranks / (worth.shape[-1] + 1))


def as_measured(worth: Worth) -> Worth:
    """Unchanged, for skills above a baseline, which are shares; raises `ValueError` if one is missing."""
    if not np.isfinite(worth).all():
        raise ValueError("some heads have no skill: probe the run again")
    return worth


STANDARDISED_LOGS = Unit("standardised logs", standardised_logs, True)
STANDARDISED_POINTS = Unit("standardised points", standardised_points, False)
NORMAL_SCORES = Unit("normal scores", normal_scores, False)
SKILL_POINTS = Unit("skill above chance", as_measured, False)
SKILL_BEYOND_INPUT = Unit("skill above a random projection", as_measured, False)
