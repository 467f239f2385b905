"""Maximum projective trees with a single root (Eisner 1996), for whole batches."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Float, Int
from numba import njit

from mtl.tasks.mst import arc_weights


def projective_trees(
    scores: Float[np.ndarray, "batch word candidate"], lengths: Int[np.ndarray, " batch"]
) -> Int[np.ndarray, "batch word"]:
    """The best projective tree of each sentence in which exactly one word hangs from the root.

    Arguments and result are those of `maximum_trees`. Time is cubic in the words.
    """
    heads = np.zeros(scores.shape[:2], dtype=np.int64)
    _solve_batch(np.ascontiguousarray(scores), lengths, heads)
    return heads


@njit(cache=True, nogil=True)
@no_type_check
def _solve_batch(scores, lengths, heads):
    size = scores.shape[2]
    # The best sums of half trees over the words s to t: `right` is headed by s, `left` by t; `open_` ones
    # have the arc between s and t, but not the outer dependents of its dependent. Each sum lies where the
    # search for a split reads a row: `X_from[s, t]`, `X_to[t, s]`.
    right_from, right_to = np.empty((size, size)), np.empty((size, size))
    left_from, left_to = np.empty((size, size)), np.empty((size, size))
    open_right_from, open_left_to = np.empty((size, size)), np.empty((size, size))
    split_open = np.empty((size, size), dtype=np.int32)
    split_right = np.empty((size, size), dtype=np.int32)
    split_left = np.empty((size, size), dtype=np.int32)
    stack = np.empty((2 * size, 2), dtype=np.int32)
    for row in range(len(scores)):
        n = lengths[row]
        if n == 0:
            continue
        weights = arc_weights(scores[row], n)
        for t in range(1, n + 1):
            right_from[t, t] = right_to[t, t] = left_from[t, t] = left_to[t, t] = 0.0
            for s in range(t - 1, 0, -1):
                best, split = right_from[s, s] + left_to[t, s + 1], s
                for middle in range(s + 1, t):
                    total = right_from[s, middle] + left_to[t, middle + 1]
                    if total > best:
                        best, split = total, middle
                split_open[s, t] = split
                open_right_from[s, t] = best + weights[t, s]
                open_left_to[t, s] = best + weights[s, t]

                best, split = open_right_from[s, t], t
                for middle in range(s + 1, t):
                    total = open_right_from[s, middle] + right_to[t, middle]
                    if total > best:
                        best, split = total, middle
                split_right[s, t] = split
                right_from[s, t] = right_to[t, s] = best

                best, split = open_left_to[t, s], s
                for middle in range(s + 1, t):
                    total = left_from[s, middle] + open_left_to[t, middle]
                    if total > best:
                        best, split = total, middle
                split_left[s, t] = split
                left_from[s, t] = left_to[t, s] = best

        root = 1
        for word in range(2, n + 1):
            if (
                weights[word, 0] + left_from[1, word] + right_from[word, n]
                > weights[root, 0] + left_from[1, root] + right_from[root, n]
            ):
                root = word
        heads[row, root - 1] = 0
        _unfold(root, n, split_open, split_right, split_left, stack, heads[row])


@njit(cache=True, nogil=True)
@no_type_check
def _unfold(root, n, split_open, split_right, split_left, stack, heads):
    # A half tree is its head and its other end.
    stack[0, 0], stack[0, 1] = root, 1
    stack[1, 0], stack[1, 1] = root, n
    top = 2
    while top > 0:
        top -= 1
        head, end = stack[top]
        if head == end:
            continue
        if end < head:
            dependent = split_left[end, head]
            between = split_open[dependent, head]
            first, last = dependent, head
        else:
            dependent = split_right[head, end]
            between = split_open[head, dependent]
            first, last = head, dependent
        heads[dependent - 1] = head
        stack[top, 0], stack[top, 1] = dependent, end
        stack[top + 1, 0], stack[top + 1, 1] = first, between
        stack[top + 2, 0], stack[top + 2, 1] = last, between + 1
        top += 3
