"""Masks of two tasks drawn by chance, with a forced number of heads in both.

The scheme works per layer (or site), so that all masks have the same number of heads in each layer:

1. *Pool*: the best heads, as many as are asked for, with an even number p of them in each layer.
2. *Layer counts*: every mask of every overlap has the same number c of heads in a layer, at most p / 2; where
   the pool is twice as large as a mask, c = p / 2.
3. *Draw*: of all pairs of masks inside the pool with these layer counts and exactly the wanted number of
   heads in common, each is equally likely. How many heads of a layer are in common follows from the draw.
"""

from __future__ import annotations

from math import comb

import numpy as np
from jaxtyping import Bool, Float, Int

from mtl.tasks.in_words import counted

Counts = tuple[int, ...]


def ranks(value: Float[np.ndarray, "site head"]) -> Int[np.ndarray, "site head"]:
    """The place of every head among all, the largest value first; equal values in the order of heads."""
    order = np.argsort(-value.ravel(), kind="stable")
    places = np.empty(value.size, dtype=np.int64)
    places[order] = np.arange(value.size)
    return places.reshape(value.shape)


def best_of_both(
    first: Float[np.ndarray, "site head"], second: Float[np.ndarray, "site head"], size: int
) -> Bool[np.ndarray, "site head"]:
    """The pool: `size` heads, an even number in each layer.

    Of all such sets, it has the least sum of both tasks' ranks. Raises `ValueError` for a size that is odd,
    or larger than even numbers of heads in each layer allow.
    """
    rank = ranks(first) + ranks(second)
    layers, heads = rank.shape
    largest = layers * (heads - heads % 2)
    if size % 2 or not 2 <= size <= largest:
        raise ValueError(f"a pool of {counted(size, 'head')}: use an even number from 2 to {largest}")
    order = np.argsort(rank, axis=1, kind="stable")
    cost = np.concatenate(
        [np.zeros((layers, 1)), np.cumsum(np.take_along_axis(rank, order, axis=1), axis=1)], axis=1
    )
    # The cheapest even numbers for the first layers, by the sum of these numbers.
    cheapest: dict[int, tuple[float, Counts]] = {0: (0.0, ())}
    for layer in range(layers):
        longer: dict[int, tuple[float, Counts]] = {}
        for taken, (sum_of_ranks, numbers) in cheapest.items():
            for number in range(0, min(heads, size - taken) + 1, 2):
                option = sum_of_ranks + float(cost[layer, number]), (*numbers, number)
                known = longer.get(taken + number)
                if known is None or option[0] < known[0]:
                    longer[taken + number] = option
        cheapest = longer
    pool = np.zeros(rank.shape, dtype=bool)
    for layer, number in enumerate(cheapest[size][1]):
        pool[layer, order[layer, :number]] = True
    return pool


def layer_counts(pool: Bool[np.ndarray, "site head"], heads: int) -> Counts:
    """How many of a mask's heads are in each layer: in proportion to the pool, by largest remainders.

    Raises `ValueError` if the pool has fewer than two heads for each head of a mask.
    """
    sizes = pool.sum(1)
    total = int(sizes.sum())
    if not 1 <= heads <= total // 2:
        raise ValueError(
            f"{counted(heads, 'head')} for each of two masks without overlap from a pool of "
            f"{counted(total, 'head')}"
        )
    exact = heads * sizes / total
    counts = np.floor(exact).astype(int)
    for layer in np.argsort(counts - exact, kind="stable")[: heads - int(counts.sum())]:
        counts[layer] += 1
    return tuple(counts.tolist())


def draw_pair(
    pool: Bool[np.ndarray, "site head"], counts: Counts, shared: int, rng: np.random.Generator
) -> Bool[np.ndarray, "mask site head"]:
    """Two masks inside the pool with these layer counts and `shared` heads in common, all equally likely.

    Raises `ValueError` for a number of shared heads that no two such masks have.
    """
    sizes = [int(size) for size in pool.sum(1)]
    # By layer and number of shared heads in it, the number of pairs of sets in that layer.
    ways = [
        [
            comb(size, count) * comb(count, both) * comb(size - count, count - both)
            for both in range(count + 1)
        ]
        for size, count in zip(sizes, counts, strict=True)
    ]
    after = _ways_of_the_rest(ways, shared)
    if not 0 <= shared <= sum(counts) or not after[0][shared]:
        raise ValueError(
            f"two masks of {counted(sum(counts), 'head')} cannot have {shared} in common in this pool"
        )
    masks = np.zeros((2, *pool.shape), dtype=bool)
    left = shared
    for layer, count in enumerate(counts):
        options = [
            number * after[layer + 1][left - both] if both <= left else 0
            for both, number in enumerate(ways[layer])
        ]
        weights = np.array([option / sum(options) for option in options])
        both = int(rng.choice(len(options), p=weights / weights.sum()))
        drawn = rng.permutation(np.flatnonzero(pool[layer]))
        masks[0, layer, drawn[:count]] = True
        masks[1, layer, drawn[count - both : 2 * count - both]] = True
        left -= both
    return masks


def _ways_of_the_rest(ways: list[list[int]], shared: int) -> list[list[int]]:
    """By layer and number of shared heads left: the pairs of sets in this layer and those after it."""
    after = [[1] + [0] * shared]
    for of_layer in reversed(ways):
        known = after[0]
        after.insert(
            0,
            [
                sum(number * known[left - both] for both, number in enumerate(of_layer) if both <= left)
                for left in range(shared + 1)
            ],
        )
    return after
