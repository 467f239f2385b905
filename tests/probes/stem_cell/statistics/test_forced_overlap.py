"""Masks drawn by chance with a forced overlap, against enumeration."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from mtl.probes.stem_cell.statistics.forced_overlap import best_of_both, draw_pair, layer_counts, ranks


def subsets(pool: np.ndarray, count: int) -> list[frozenset[int]]:
    return [frozenset(chosen) for chosen in itertools.combinations(np.flatnonzero(pool).tolist(), count)]


def test_ranks_put_the_largest_first_and_ties_in_order() -> None:
    assert ranks(np.array([[1.0, 3.0], [1.0, 2.0]])).tolist() == [[2, 0], [3, 1]]


@pytest.mark.parametrize("seed", range(12))
def test_the_pool_is_the_best_of_all_with_even_numbers_per_layer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(2, 3, 3 + seed % 2))
    size = int(rng.choice([2, 4, 6]))
    pool = best_of_both(first, second, size)
    assert pool.sum() == size
    assert (pool.sum(1) % 2 == 0).all()
    cost = (ranks(first) + ranks(second)).ravel()
    heads = first.shape[1]
    best = min(
        sum(cost[list(chosen)])
        for chosen in itertools.combinations(range(first.size), size)
        if all(number % 2 == 0 for number in Counter(head // heads for head in chosen).values())
    )
    assert cost[pool.ravel()].sum() == best


@pytest.mark.parametrize("shared", [0, 6, 12])
@pytest.mark.parametrize("size", [24, 30])
def test_masks_have_the_counts_the_layers_and_the_overlap_that_were_forced(shared: int, size: int) -> None:
    rng = np.random.default_rng(size + shared)
    for _ in range(30):
        pool = best_of_both(*rng.normal(size=(2, 6, 12)), size)
        counts = layer_counts(pool, 12)
        masks = draw_pair(pool, counts, shared, rng)
        assert masks.sum((1, 2)).tolist() == [12, 12]
        assert masks.sum(2).tolist() == [list(counts), list(counts)]
        assert (masks[0] & masks[1]).sum() == shared
        assert not (masks & ~pool).any()
        if size == 24:
            assert (2 * np.array(counts) == pool.sum(1)).all()


@pytest.mark.parametrize("shared", [0, 1, 2, 3])
def test_every_pair_of_masks_is_equally_likely(shared: int) -> None:
    """Against all pairs with these counts and this overlap, listed one by one: chi-squared at 0.001."""
    pool = np.array([[True, True, True, True, False], [True, False, True, False, False]])
    counts = (2, 1)
    expected = {
        (a | c, b | d)
        for a, b in itertools.product(subsets(pool[0], 2), repeat=2)
        for c, d in itertools.product(
            [frozenset(5 + head for head in one) for one in subsets(pool[1], 1)], repeat=2
        )
        if len(a & b) + len(c & d) == shared
    }
    rng = np.random.default_rng(shared)
    draws = 60 * len(expected)
    seen = Counter(
        tuple(frozenset(np.flatnonzero(mask).tolist()) for mask in draw_pair(pool, counts, shared, rng))
        for _ in range(draws)
    )
    assert set(seen) == expected
    statistic = sum((number - 60) ** 2 / 60 for number in seen.values())
    freedom = len(expected) - 1
    assert (
        statistic < freedom + 3.1 * (2 * freedom) ** 0.5 + 10
    )  # above the 0.999 quantile for these freedoms


def test_layer_counts_are_in_proportion() -> None:
    pool = np.zeros((3, 8), dtype=bool)
    pool[0, :8], pool[1, :4], pool[2, :2] = True, True, True
    assert layer_counts(pool, 7) == (4, 2, 1)
    assert layer_counts(pool, 5) == (3, 1, 1)  # 2.86, 1.43, 0.71


def test_what_cannot_be_drawn_is_said() -> None:
    value = np.zeros((2, 3))
    with pytest.raises(ValueError, match="a pool of 5 heads: use an even number from 2 to 4"):
        best_of_both(value, value, 5)
    with pytest.raises(ValueError, match="a pool of 6 heads"):
        best_of_both(value, value, 6)
    pool = best_of_both(value, value, 4)
    with pytest.raises(ValueError, match="3 heads for each of two masks without overlap from a pool of 4"):
        layer_counts(pool, 3)
    with pytest.raises(ValueError, match="two masks of 2 heads cannot have 3 in common"):
        draw_pair(pool, (1, 1), 3, np.random.default_rng(0))
