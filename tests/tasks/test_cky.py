"""The best bracketing against enumeration and supar."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from mtl.tasks.decoders.con import best_brackets

Span = tuple[int, int]


def bracketings(start: int, end: int) -> Iterator[list[Span]]:
    """All binary bracketings of the words from `start` to `end` - 1, in pre-order."""
    if end - start == 1:
        yield [(start, end)]
    for middle in range(start + 1, end):
        for left in bracketings(start, middle):
            for right in bracketings(middle, end):
                yield [(start, end), *left, *right]


def _spans(scores: np.ndarray, lengths: np.ndarray) -> list[list[Span]]:
    rows, starts, ends = best_brackets(scores, lengths)
    spans: list[list[Span]] = [[] for _ in lengths]
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        spans[row].append((start, end))
    return spans


def test_enumeration_finds_as_many_bracketings_as_there_are() -> None:
    assert [len(list(bracketings(0, n))) for n in range(1, 7)] == [1, 1, 2, 5, 14, 42]  # Catalan


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_best_of_all_bracketings(dtype: type) -> None:
    lengths = np.tile(np.arange(7), 20)
    scores = np.random.default_rng(0).normal(size=(len(lengths), 7, 7)).astype(dtype)
    for row, spans in enumerate(_spans(scores, lengths)):
        everything = list(bracketings(0, lengths[row])) or [[]]
        assert spans == max(everything, key=lambda tree: sum(scores[row, i, j] for i, j in tree))


def test_equals_supar_on_long_sentences() -> None:
    from supar import ConstituencyCRF

    scores = torch.randn(4, 31, 31, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([30, 17, 1, 2])
    theirs = ConstituencyCRF(scores.clone().requires_grad_(), lengths).argmax
    expected = [sorted((i, j) for i, j, *_ in spans) for spans in theirs]
    assert [sorted(spans) for spans in _spans(scores.numpy(), lengths.numpy())] == expected


def test_nonsense_scores_still_give_a_tree() -> None:
    (spans,) = _spans(np.full((1, 6, 6), np.nan), np.array([5]))
    assert spans in list(bracketings(0, 5))
