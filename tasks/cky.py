"""The best binary bracketing of each sentence (Cocke, Kasami, Younger), for whole batches."""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float, Int
from numba import njit


class Brackets(NamedTuple):
    """Spans of a batch: those of the first sentence, then of the second, and so on, each in pre-order."""

    rows: Int[np.ndarray, " span"]
    starts: Int[np.ndarray, " span"]
    ends: Int[np.ndarray, " span"]


def best_brackets(
    scores: Float[np.ndarray, "batch boundary boundary"], lengths: Int[np.ndarray, " batch"]
) -> Brackets:
    """The 2n - 1 spans of the binary tree with the greatest sum of scores, in cubic time.

    `scores[b, i, j]` scores the words i to j - 1 as one bracket; only 0 <= i < j <= length is read.
    """
    counts = np.maximum(2 * lengths - 1, 0)
    rows = np.repeat(np.arange(len(lengths)), counts)
    starts, ends = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
    _solve_batch(np.ascontiguousarray(scores), lengths, starts, ends)
    return Brackets(rows, starts, ends)


@njit(cache=True, nogil=True)
@no_type_check
def _solve_batch(scores, lengths, starts, ends):
    width = scores.shape[1]
    # `by_start[i, j]` and `by_end[j, i]` hold the same sum: the search for a split reads a row of each
    by_start = np.empty((width, width))
    by_end = np.empty((width, width))
    splits = np.empty((width, width), dtype=np.int32)
    stack = np.empty((width + 1, 2), dtype=np.int64)
    filled = 0
    for row in range(len(scores)):
        length = lengths[row]
        if length == 0:
            continue
        _fill(scores[row], length, by_start, by_end, splits)
        stack[0, 0], stack[0, 1] = 0, length
        top = 1
        while top > 0:
            top -= 1
            start, end = stack[top]
            starts[filled], ends[filled] = start, end
            filled += 1
            if end - start > 1:
                split = splits[start, end]
                stack[top, 0], stack[top, 1] = split, end
                stack[top + 1, 0], stack[top + 1, 1] = start, split
                top += 2


@njit(cache=True, nogil=True)
@no_type_check
def _fill(scores, length, by_start, by_end, splits):
    for end in range(1, length + 1):
        by_start[end - 1, end] = by_end[end, end - 1] = scores[end - 1, end]
        for start in range(end - 2, -1, -1):
            split = start + 1
            best = by_start[start, split] + by_end[end, split]
            for middle in range(start + 2, end):
                total = by_start[start, middle] + by_end[end, middle]
                if total > best:
                    best, split = total, middle
            splits[start, end] = split
            by_start[start, end] = by_end[end, start] = best + scores[start, end]
