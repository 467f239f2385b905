"""Graphs in which every word is reached from the root, for whole batches."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Float, Int
from numba import njit


def with_all_reached(
    scores: Float[np.ndarray, "batch word candidate"],
    chosen: Bool[np.ndarray, "batch word candidate"],
    lengths: Int[np.ndarray, " batch"],
) -> Bool[np.ndarray, "batch word candidate"]:
    """The chosen arcs and, as long as some words are not reached from the root, the best arc to one of them.

    `scores[b, d, h]` scores head `h` (0 is the root, else 1-based) for word `d` (from 0). An arc that is
    added leads from a word that is reached to one that is not; ties go to the first word. Time is quadratic
    in the words.
    """
    arcs = np.array(chosen, order="C")
    _solve_batch(np.ascontiguousarray(scores), arcs, lengths)
    return arcs


@njit(cache=True, nogil=True)
@no_type_check
def _solve_batch(scores, arcs, lengths):
    for row in range(len(scores)):
        _solve(scores[row], arcs[row], lengths[row])


@njit(cache=True, nogil=True)
@no_type_check
def _solve(scores, arcs, length):
    reached = np.zeros(length + 1, dtype=np.bool_)
    best = np.full(length, -np.inf)
    best_head = np.zeros(length, dtype=np.int64)
    stack = np.zeros(length + 1, dtype=np.int64)
    reached[0] = True
    top = 1
    for _ in range(length + 1):
        if top == 0:  # all that is reached has been passed on: add an arc
            word = -1
            for d in range(length):
                if not reached[d + 1] and (word < 0 or best[d] > best[word]):
                    word = d
            arcs[word, best_head[word]] = True
            reached[word + 1] = True
            stack[0] = word + 1
            top = 1
        top -= 1
        head = stack[top]
        for d in range(length):
            if reached[d + 1]:
                continue
            if arcs[d, head]:
                reached[d + 1] = True
                stack[top] = d + 1
                top += 1
            elif scores[d, head] > best[d]:
                best[d] = scores[d, head]
                best_head[d] = head
