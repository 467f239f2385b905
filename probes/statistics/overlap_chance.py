"""How much two masks overlap by chance, exactly."""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import hypergeom


def overlap_distribution(
    heads: int, first: Int[np.ndarray, " site"], second: Int[np.ndarray, " site"]
) -> Float[np.ndarray, " overlap"]:
    """Probability of 0, 1, ... common open heads if both masks draw their heads of each layer at random.

    `heads`: heads per layer; `first`, `second`: each mask's number of open heads per layer.

    Within a layer the number of common heads is hypergeometric, and layers are independent: the sum's
    distribution is the convolution. With a single "layer" of all heads it is the hypergeometric test.
    """
    layers = [
        hypergeom.pmf(np.arange(min(a, b) + 1), heads, a, b)
        for a, b in zip(first.tolist(), second.tolist(), strict=True)
    ]
    return functools.reduce(np.convolve, layers, np.ones(1))


def chance_of_overlap(
    first: Bool[np.ndarray, "site head"], second: Bool[np.ndarray, "site head"], keep_layers: bool
) -> tuple[float, float, float]:
    """Expected common open heads, and the chance of at least and of at most as many as there are.

    With `keep_layers` the masks of comparison have as many open heads in each layer as these, otherwise as
    many in all.
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
