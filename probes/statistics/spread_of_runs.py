"""Differences between setups' mean scores, with the spread of runs taken from all setups of a study.

Runs are not paired by their seeds: if the seed explains nothing, pairing throws away half of the degrees of
freedom. If the seed explains something (`seed_effect`), it is an effect of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import fdtrc, stdtr

from mtl.probes.statistics.resampling import t_interval

Runs = Mapping[int, float]
"""The score of a run by its seed; setups may have different seeds."""
LOOK = 0.2
"""The p of an F test below which the compared setups count as spreading more than the rest. With it,
intervals of 95 % cover 0.91 to 0.97 if spreads differ up to fourfold, and 0.96 if they are equal (simulated
in tests/probes/statistics/test_spread_of_runs.py); with 0.05, they cover 0.85 and less."""
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
    """Whether the spread is that of all setups, and not only of those that are compared (Welch 1947)."""
    seeds: bool = False
    """Whether seeds are an effect of the model."""
    error: float = float("nan")
    """The standard error."""
    freedom: float = float("nan")
    """Degrees of freedom of the spread."""

    def above(self) -> float:
        """One-sided p: the chance of a value as high if the true one is 0."""
        return self.p / 2 if self.value > 0 else 1 - self.p / 2


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

    The variance of a run is the mean of the setups' variances, weighted by their degrees of freedom. If the
    compared setups spread more than the rest (`LOOK`), or if there is no rest, each has its own variance, and
    the degrees of freedom are Satterthwaite's (1946). A pooled spread is that about the effects of setups and
    seeds if the weights sum to 0 and `seed_effect` has a p below `SEED_LOOK`.
    """
    scores = {name: np.array([*by_seed.values()]) for name, by_seed in runs.items()}
    value = sum(weight * float(scores[name].mean()) for name, weight in weights.items())
    shares = np.array([weight**2 / len(scores[name]) for name, weight in weights.items()])
    own = [scores[name] for name in weights]
    rest = [values for name, values in scores.items() if name not in weights]
    own_variance, own_freedom = _spread(own)
    rest_variance, rest_freedom = _spread(rest)
    pooled = (
        rest_freedom > 0
        and rest_variance > 0
        and (
            own_freedom == 0 or float(fdtrc(own_freedom, rest_freedom, own_variance / rest_variance)) >= LOOK
        )
    )
    with_seeds = pooled and abs(sum(weights.values())) < 1e-9 and seed_effect(runs).p < SEED_LOOK
    if with_seeds:
        value, square, degrees = _beside_seeds(runs, weights)
    elif pooled:
        variance, freedom = _spread([*own, *rest])
        square, degrees = variance * float(shares.sum()), float(freedom)
    elif min(map(len, own)) < 2 or own_variance == 0:
        return Difference(value, float("nan"), float("nan"), float("nan"), pooled=False)
    else:
        parts = shares * np.array([values.var(ddof=1) for values in own])
        square = float(parts.sum())
        degrees = square**2 / float((parts**2 / [len(values) - 1 for values in own]).sum())
    error = square**0.5
    low, high = t_interval(value, error, degrees, level)
    p = 2 * float(stdtr(degrees, -abs(value) / error))
    return Difference(value, low, high, p, pooled, with_seeds, error, degrees)


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


def _beside_seeds(runs: Mapping[str, Runs], weights: Mapping[str, float]) -> tuple[float, float, float]:
    """The weighted sum by least squares, its squared error, and the degrees of freedom."""
    design, scores, _ = _design(runs)
    squares, rank, effects = _fit(design, scores)
    freedom = len(scores) - rank
    contrast = np.zeros(design.shape[1])
    for place, name in enumerate(runs):
        contrast[place] = weights.get(name, 0.0)
    spread = contrast @ np.linalg.pinv(design.T @ design) @ contrast
    return float(contrast @ effects), squares / freedom * float(spread), float(freedom)


def _design(
    runs: Mapping[str, Runs],
) -> tuple[Float[np.ndarray, "run effect"], Float[np.ndarray, " run"], int]:
    """Indicators of setups, then of seeds; the scores; and how many setups there are."""
    seeds = list(dict.fromkeys(seed for by_seed in runs.values() for seed in by_seed))
    rows = [
        (place, seed, score) for place, by_seed in enumerate(runs.values()) for seed, score in by_seed.items()
    ]
    design = np.zeros((len(rows), len(runs) + len(seeds)))
    for row, (place, seed, _) in enumerate(rows):
        design[row, [place, len(runs) + seeds.index(seed)]] = 1
    return design, np.array([score for *_, score in rows]), len(runs)


def _fit(
    design: Float[np.ndarray, "run effect"], scores: Float[np.ndarray, " run"]
) -> tuple[float, int, Float[np.ndarray, " effect"]]:
    """The sum of squared residuals, the rank of the design, and the effects."""
    effects, _, rank, _ = np.linalg.lstsq(design, scores)
    return float(((scores - design @ effects) ** 2).sum()), int(rank), effects


def _spread(setups: list[Float[np.ndarray, " _"]]) -> tuple[float, int]:
    """The pooled variance of a run about the mean of its setup, and its degrees of freedom."""
    freedom = sum(len(scores) - 1 for scores in setups)
    squares = sum(float(((scores - scores.mean()) ** 2).sum()) for scores in setups)
    return (squares / freedom if freedom else 0.0), freedom
