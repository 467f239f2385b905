"""The best set of spans that do not overlap (weighted interval scheduling)."""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np
from jaxtyping import Float, Int


def select_spans(
    weights: Float[np.ndarray, "batch word word"], lengths: Int[np.ndarray, " batch"]
) -> Int[np.ndarray, "span 3"]:
    """The set of non-overlapping spans with the greatest sum of weights in each sentence of a batch.

    `weights[b, i, j]` is the gain from taking words i to j (inclusive, i <= j) of sentence b as a span;
    spans without a gain are left out. Exact, by dynamic programming over right ends (weighted interval
    scheduling); returns rows (sentence, start, end), ends exclusive, in order of the text.
    """
    return _select(np.ascontiguousarray(weights), lengths.astype(np.int64))


@numba.njit(cache=True, nogil=True)
@no_type_check
def _select(weights, lengths):
    longest = weights.shape[1]
    best = np.zeros(longest + 1)
    chosen = np.full(longest + 1, -1)
    spans = []
    for sentence in range(len(lengths)):
        length = lengths[sentence]
        best[1:] = -np.inf
        chosen[:] = -1
        # The outer loop is over starts, since a row of `weights` is contiguous in memory. All spans that end
        # at or before `start` have been seen by then, so best[start] is final once it is compared with its
        # left neighbour.
        for start in range(length):
            if start and best[start - 1] >= best[start]:
                best[start], chosen[start] = best[start - 1], -1
            for last in range(start, length):
                weight = weights[sentence, start, last]
                if weight > 0 and best[start] + weight > best[last + 1]:
                    best[last + 1], chosen[last + 1] = best[start] + weight, start
        end, first = length, len(spans)
        if length and best[end - 1] >= best[end]:
            chosen[end] = -1
        while end > 0:
            if chosen[end] < 0:
                end -= 1
            else:
                spans.append((sentence, chosen[end], end))
                end = chosen[end]
        spans[first:] = spans[first:][::-1]
    table = np.empty((len(spans), 3), dtype=np.int64)
    for index in range(len(spans)):
        table[index, 0], table[index, 1], table[index, 2] = spans[index]
    return table
