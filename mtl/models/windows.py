"""Overlapping windows over sentences that are longer than the encoder can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int


class Rows(NamedTuple):
    """Windows as rows: the pieces of each row, and whether the row owns the word of each piece."""

    pieces: Int[np.ndarray, " position"]
    """Indices into the batch's pieces, all rows one after the other."""
    owned: Bool[np.ndarray, " position"]
    length: Int[np.ndarray, " row"]
    """Pieces per row."""


def windows(
    counts: Int[np.ndarray, " word"], room: int, stride: int, causal: bool = False
) -> list[tuple[int, int, int, int]]:
    """Windows (first word, end, first owned word, end of owned words) of at most `room` pieces each.

    `stride` is the number of pieces from the start of a window to that of the next, which is moved back to
    the start of a word. One window owns each word: the one with the most pieces on the word's shorter side,
    or with `causal` the one with the most pieces before it; the first window wins ties. No word may have more
    than `room` pieces.
    """
    end = np.cumsum(counts)
    start = end - counts
    words = len(counts)
    if words == 0 or end[-1] <= room:
        return [(0, words, 0, words)]
    spans: list[tuple[int, int]] = []
    first = 0
    while True:
        last = int(np.searchsorted(end, start[first] + room, side="right"))
        if last == words:
            # The last window starts as far back as it can.
            first = int(np.searchsorted(start, end[-1] - room))
            spans.append((first, words))
            break
        spans.append((first, last))
        onward = int(np.searchsorted(start, start[first] + stride, side="right")) - 1
        first = min(max(onward, first + 1), last)
    begin, stop = np.array(spans).T
    before, after = start - start[begin][:, None], end[stop - 1][:, None] - end
    margin = np.where(after >= 0, before, -1) if causal else np.minimum(before, after)
    best = np.where(margin >= 0, margin, -1).argmax(axis=0)
    owned = np.searchsorted(best, np.arange(len(spans) + 1))
    return [
        (*span, int(owned[i]), int(owned[i + 1])) for i, span in enumerate(spans) if owned[i] < owned[i + 1]
    ]


def rows_of(
    counts: Sequence[Int[np.ndarray, " _"]], room: int, stride: int, causal: bool = False
) -> tuple[Rows, Int[np.ndarray, " row"]]:
    """The windows of a batch of sentences as rows, and the sentence of each row.

    `counts` are each sentence's pieces per word; see `windows` for the other arguments.
    """
    pieces, owned, sentence, base = [], [], [], 0
    for number, count in enumerate(counts):
        edge = np.concatenate([[0], np.cumsum(count)])
        for first, end, mine, mine_end in windows(count, room, stride, causal):
            piece = np.arange(edge[first], edge[end])
            pieces.append(piece + base)
            owned.append((piece >= edge[mine]) & (piece < edge[mine_end]))
            sentence.append(number)
        base += edge[-1]
    length = np.array([len(row) for row in pieces])
    return Rows(np.concatenate(pieces), np.concatenate(owned), length), np.array(sentence)
