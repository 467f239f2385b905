"""Combinations of values in which every pair of values of two keys occurs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Combination = dict[str, Any]


def pairwise(
    values: Mapping[str, Sequence[Any]],
    possible: Callable[[Combination], bool] = lambda combination: True,
    tries: int = 60,
    seed: int = 0,
    first: float = 0.0,
) -> list[Combination]:
    """Few combinations with every pair that occurs in any `possible` one (as far as random tries find it).

    A key that is free takes its first value with the probability `first`, else any.
    """
    rng = random.Random(seed)
    keys = list(values)
    missing = {
        (one, i, other, j)
        for one, other in combinations(keys, 2)
        for i, j in product(range(len(values[one])), range(len(values[other])))
    }

    def drawn(pair: tuple[str, int, str, int]) -> dict[str, int]:
        one, i, other, j = pair
        free = {key: 0 if rng.random() < first else rng.randrange(len(values[key])) for key in keys}
        return free | {one: i, other: j}

    def covered(places: Mapping[str, int]) -> set[tuple[str, int, str, int]]:
        return {(one, places[one], other, places[other]) for one, other in combinations(keys, 2)}

    def built(places: Mapping[str, int]) -> Combination:
        return {key: values[key][place] for key, place in places.items()}

    chosen = []
    while missing:
        pair = min(missing)
        candidates = [drawn(pair) for _ in range(tries)]
        candidates.sort(key=lambda places: len(covered(places) & missing), reverse=True)
        best = next((places for places in candidates if possible(built(places))), None)
        if best is None:
            missing.discard(pair)
            continue
        missing -= covered(best)
        chosen.append(built(best))
    return chosen
