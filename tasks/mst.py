"""Maximum spanning trees with a single root (Chu and Liu 1965, Edmonds 1967), for whole batches."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Float, Int
from numba import njit


def maximum_trees(
    scores: Float[np.ndarray, "batch word candidate"], lengths: Int[np.ndarray, " batch"]
) -> Int[np.ndarray, "batch word"]:
    """The best tree of each sentence in which exactly one word hangs from the root; padding gets 0.

    `scores[b, d, h]` scores head `h` (0 is the root, else 1-based) for word `d` (from 0). A score that is
    not finite forbids its arc: it is taken only if every tree has such an arc. Heads are returned with the
    same numbers. Time is quadratic in the words.
    """
    heads = np.zeros(scores.shape[:2], dtype=np.int64)
    _solve_batch(np.ascontiguousarray(scores), lengths, heads)
    return heads


@njit(cache=True, nogil=True)
@no_type_check
def _solve_batch(scores, lengths, heads):
    for row in range(len(scores)):
        if lengths[row] > 0:
            _solve(arc_weights(scores[row], lengths[row]), heads[row])


@njit(cache=True, nogil=True)
@no_type_check
def arc_weights(scores, length):
    """The weights of arcs, float64 [length + 1, length + 1], whose best tree has one arc from the root.

    `scores` [word, candidate] are those of one sentence of `length` words, candidate 0 the root; row 0 of the
    result has no meaning. Arcs whose score is not finite get a weight so low that the best tree has one
    only where every tree must.
    """
    # All trees have `length` arcs, so the scores of two trees differ by at most `length` times the range of
    # arc scores. A larger penalty on arcs from the root therefore makes every tree with one such arc beat
    # every tree with several. In float64 the penalty costs the float32 scores no digits.
    low, high = np.inf, -np.inf
    for d in range(length):
        for h in range(length + 1):
            if h != d + 1 and np.isfinite(scores[d, h]):
                low = min(low, scores[d, h])
                high = max(high, scores[d, h])
    if low > high:
        low, high = 0.0, 0.0
    forbidden = low - (high - low + 1.0) * (length + 1)
    penalty = (high - forbidden + 1.0) * (length + 1)
    weights = np.empty((length + 1, length + 1))
    for d in range(length):
        for h in range(length + 1):
            weights[d + 1, h] = scores[d, h] if np.isfinite(scores[d, h]) else forbidden
        weights[d + 1, 0] -= penalty
    return weights


@njit(cache=True, nogil=True)
@no_type_check
def _solve(weights, heads):
    """Follow best arcs from word to head; contract each cycle into one of its slots; unfold at the end.

    A slot is a row of `weights` (0 is the root). It represents a node: a word (1..n) or a contracted
    cycle (n + 1 ..), which is the parent of the nodes in it. Every arc between slots remembers the words
    that it joins. Contracting k of n slots takes O(k n) and leaves k - 1 fewer, so the whole takes O(n^2).
    """
    slots = len(weights)
    arc_word = np.empty((slots, slots), dtype=np.int32)
    arc_head = np.empty((slots, slots), dtype=np.int32)
    for d in range(slots):
        for h in range(slots):
            arc_word[d, h] = d
            arc_head[d, h] = h
    node = np.arange(slots)
    untouched, on_path, done, gone = 0, 1, 2, 3
    state = np.zeros(slots, dtype=np.int8)
    state[0] = done
    parent = np.zeros(2 * slots, dtype=np.int32)
    chosen_word = np.zeros(2 * slots, dtype=np.int32)
    chosen_head = np.zeros(2 * slots, dtype=np.int32)
    chosen_weight = np.zeros(slots)
    path = np.empty(slots, dtype=np.int32)
    nodes = slots

    for start in range(1, slots):
        if state[start] != untouched:
            continue
        path[0] = start
        state[start] = on_path
        top = 0
        while True:
            slot = path[top]
            head = 0
            for other in range(1, slots):
                if other != slot and state[other] != gone and weights[slot, other] > weights[slot, head]:
                    head = other
            chosen_word[node[slot]] = arc_word[slot, head]
            chosen_head[node[slot]] = arc_head[slot, head]
            chosen_weight[slot] = weights[slot, head]
            if state[head] == done:
                for index in range(top + 1):
                    state[path[index]] = done
                break
            if state[head] == untouched:
                top += 1
                path[top] = head
                state[head] = on_path
                continue
            # `head` is on the path: the path from there on is a cycle, which is contracted into slot `head`
            first = top
            while path[first] != head:
                first -= 1
            for other in range(slots):
                if state[other] == gone:
                    continue
                inside = False
                for index in range(first, top + 1):
                    inside = inside or path[index] == other
                if inside:
                    continue
                best_in, best_out = head, head
                best_in_weight = weights[head, other] - chosen_weight[head]
                for index in range(first + 1, top + 1):
                    member = path[index]
                    if weights[member, other] - chosen_weight[member] > best_in_weight:
                        best_in = member
                        best_in_weight = weights[member, other] - chosen_weight[member]
                    if weights[other, member] > weights[other, best_out]:
                        best_out = member
                weights[head, other] = best_in_weight
                arc_word[head, other] = arc_word[best_in, other]
                arc_head[head, other] = arc_head[best_in, other]
                if other > 0:
                    weights[other, head] = weights[other, best_out]
                    arc_word[other, head] = arc_word[other, best_out]
                    arc_head[other, head] = arc_head[other, best_out]
            for index in range(first, top + 1):
                parent[node[path[index]]] = nodes
                state[path[index]] = gone
            state[head] = on_path
            node[head] = nodes
            nodes += 1
            top = first

    # The arc into a contracted cycle replaces the arc of the member that it enters, at every level below.
    replaced = np.zeros(nodes, dtype=np.bool_)
    for outer in range(nodes - 1, 0, -1):
        if replaced[outer]:
            continue
        heads[chosen_word[outer] - 1] = chosen_head[outer]
        inner = chosen_word[outer]
        while inner != outer:
            replaced[inner] = True
            inner = parent[inner]
