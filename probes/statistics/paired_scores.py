"""Whether two annotations of the same sentences differ by more than chance, for many pairs at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from mtl.probes.statistics.corrections import benjamini_hochberg

Score = Callable[[Float[np.ndarray, "draw count"]], Float[np.ndarray, " draw"]]
"""A score from counts summed over sentences, such as F1 from correct, predicted and gold."""

DRAWS = 10_000
"""The default number of resamples. With n of them, p is at least 1 / (n + 1), and adjusting may multiply p by
the number of changes: with 1,000 resamples, a single one of 72 heads could never be significant at 0.05."""
BLOCK = 1000
"""Resamples held in memory at once."""


@dataclass(frozen=True)
class ScoreLosses:
    """How much a score loses by each of several changes to a model."""

    score: float
    """The score of the unchanged model."""
    loss: Float[np.ndarray, " change"]
    """The score of the unchanged model less that of the changed one."""
    low: Float[np.ndarray, " change"]
    high: Float[np.ndarray, " change"]
    """Ends of the percentile interval by the paired bootstrap over sentences."""
    p: Float[np.ndarray, " change"]
    """Two-sided, by approximate randomisation: the two annotations of a sentence are exchanged at random."""
    q: Float[np.ndarray, " change"]
    """p adjusted for all changes of a family (Benjamini and Hochberg 1995): the smallest false discovery rate
    at which a change is significant."""


def score_losses(
    unchanged: Float[np.ndarray, "sentence count"] | Int[np.ndarray, "sentence count"],
    changed: Float[np.ndarray, "change sentence count"] | Int[np.ndarray, "change sentence count"],
    score: Score,
    *,
    families: Sequence[Hashable] | None = None,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> ScoreLosses:
    """Compare each change with the unchanged model on the same sentences (Koehn 2004; Noreen 1989).

    All changes are tested on the same draws. `families` has the family of each change; changes of one family
    are adjusted for each other. Without families, all changes are.
    """
    rng = np.random.default_rng(seed)
    base, variants = unchanged.astype(np.float64), changed.astype(np.float64)
    sentences = len(base)
    before = float(score(base.sum(0, keepdims=True))[0])
    loss = before - score(variants.sum(1))
    resampled = np.empty((len(variants), draws))
    as_far = np.zeros(len(variants))
    for first in range(0, draws, BLOCK):
        block = min(BLOCK, draws - first)
        weights = rng.multinomial(sentences, np.full(sentences, 1 / sentences), size=block).astype(np.float64)
        exchanged = rng.integers(0, 2, size=(block, sentences)).astype(np.float64)
        of_base = score(weights @ base)
        for index, variant in enumerate(variants):
            resampled[index, first : first + block] = of_base - score(weights @ variant)
            moved = exchanged @ (variant - base)
            by_chance = score(base.sum(0) + moved) - score(variant.sum(0) - moved)
            # Numbers that are equal in exact arithmetic may differ in the last digits.
            as_far[index] += np.sum(np.abs(by_chance) >= abs(loss[index]) - 1e-9)
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], axis=1)
    p = (1 + as_far) / (draws + 1)
    q, kinds = np.empty_like(p), list(families or [None] * len(p))
    for kind in dict.fromkeys(kinds):
        members = [index for index, other in enumerate(kinds) if other == kind]
        q[members] = benjamini_hochberg(p[members])
    return ScoreLosses(before, loss, low, high, p, q)
