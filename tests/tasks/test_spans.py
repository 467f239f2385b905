"""Span decoding against enumeration of all sets of non-overlapping spans."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from mtl.tasks.interval_scheduling import select_spans
from mtl.tasks.sentence import Span
from mtl.tasks.spans import without_overlaps


def _sets(length: int) -> list[tuple[tuple[int, int], ...]]:
    """All sets of disjoint spans of a sentence (ends exclusive), in order of the text."""

    def after(start: int) -> list[tuple[tuple[int, int], ...]]:
        found: list[tuple[tuple[int, int], ...]] = [()]
        for first, end in combinations(range(start, length + 1), 2):
            found += [((first, end), *rest) for rest in after(end)]
        return found

    return after(0)


@pytest.mark.parametrize("shift", [0.0, -1.0, 1.0])
def test_enumeration(shift: float) -> None:
    rng = np.random.default_rng(7)
    weights = (rng.normal(size=(60, 5, 5)) + shift).astype(np.float32)
    lengths = rng.integers(1, 6, size=60)
    chosen = select_spans(weights, lengths)
    for row, length in enumerate(lengths):
        ours = tuple((start, end) for sentence, start, end in chosen.tolist() if sentence == row)
        best = max(_sets(length), key=lambda spans: sum(weights[row, s, e - 1] for s, e in spans))
        assert ours == best


def test_nothing_to_gain_and_nothing_at_all() -> None:
    assert select_spans(np.full((2, 4, 4), -1.0), np.array([4, 2])).shape == (0, 3)
    assert select_spans(np.zeros((1, 4, 4)), np.array([4])).shape == (0, 3)
    assert select_spans(np.ones((0, 4, 4)), np.array([], dtype=np.int64)).shape == (0, 3)


def test_padding_and_the_lower_triangle_are_not_read() -> None:
    weights = np.full((1, 4, 4), 9.0)
    weights[0][np.triu_indices(4)] = -1.0
    weights[0, :, 2:] = 9.0
    weights[0, 0, 1] = 2.0
    assert select_spans(weights, np.array([2])).tolist() == [[0, 0, 2]]


def test_of_overlapping_spans_the_first_and_longest_stays() -> None:
    spans = [Span(4, 5, "c"), Span(0, 2, "a"), Span(0, 3, "b"), Span(2, 4, "d"), Span(3, 4, "e")]
    assert without_overlaps(spans) == [Span(0, 3, "b"), Span(3, 4, "e"), Span(4, 5, "c")]
