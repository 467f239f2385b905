"""How much two masks overlap by chance, exactly."""

from __future__ import annotations

import functools
import math

import numpy as np
from jaxtyping import Bool, Float, Int


def overlap_distribution(
    heads: int, first: Int[np.ndarray, " site"], second: Int[np.ndarray, " site"]
) -> Float[np.ndarray, " overlap"]:
    """The probabilities of 0, 1, ... common open heads if both masks draw the heads of each layer at random.

    `heads`: heads per layer; `first`, `second`: each mask's number of open heads per layer.

    Within a layer, the number of common heads is hypergeometric. Layers are independent, so the distribution
    of the sum is the convolution. A single "layer" of all heads gives the hypergeometric test.
    """
    layers = (_in_common(heads, a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True))
    return functools.reduce(np.convolve, layers, np.ones(1))


@functools.cache
def _in_common(heads: int, first: int, second: int) -> tuple[float, ...]:
    """The hypergeometric distribution; loading `scipy.stats`, which has it, takes longer than a figure."""
    ways = math.comb(heads, second)
    return tuple(
        math.comb(first, common) * math.comb(heads - first, second - common) / ways
        for common in range(min(first, second) + 1)
    )


def chance_of_overlap(
    first: Bool[np.ndarray, "site head"], second: Bool[np.ndarray, "site head"], keep_layers: bool
) -> tuple[float, float, float]:
    """The expected number of common open heads, and the chance of at least and of at most as many as here.

    With `keep_layers`, random masks have as many open heads in each layer as these masks; otherwise, as many
    in all.
    """
    if not keep_layers:
        first, second = first.reshape(1, -1), second.reshape(1, -1)
    common = int((first & second).sum())
    distribution = overlap_distribution(first.shape[1], first.sum(1), second.sum(1))
    expected = float((first.sum(1) * second.sum(1)).sum() / first.shape[1])
    # Rounding can leave a sum of all probabilities just above one.
    return (
        expected,
        min(1.0, float(distribution[common:].sum())),
        min(1.0, float(distribution[: common + 1].sum())),
    )
