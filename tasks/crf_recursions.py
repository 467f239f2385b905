"""The recursions of `BioCrf` on the CPU: forward, backward and Viterbi, one sequence after the other.

Tags are O, then B of every label, then I of every label; states are O and the labels. Public functions take
`scores` [row word tag], `lengths` [row], at least 1 but for `best_paths`, and the fields of
`mtl.tasks.crf.Transitions`.
"""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np

_TINY = 1e-290
"""A tag that could be but is less probable than this may be lost to underflow, with all paths through it."""


@numba.njit(cache=True, nogil=True)
@no_type_check
def _forward(scores, length, start, weights, stays, alphas, factors):
    """Fill `alphas` and `factors` [word tag] for one row; return log Z without the end potentials, or NaN.

    `alphas` are forward probabilities that sum to 1 at every word; `factors` are what the sums over
    predecessors were multiplied by (exp of the emission over the scale). `scores` are [word tag]; `start`,
    `weights` and `stays` are exponentiated potentials. NaN says that a tag falls some 660 nats behind the
    others, so that float64 does not hold its probability.
    """
    labels = stays.shape[1]
    total = 0.0
    sums = np.zeros(2 * labels + 1)
    for word in range(length):
        sums[:] = 0.0
        if word == 0:
            sums[: labels + 1] = start
        else:
            before = alphas[word - 1]
            for state in range(labels + 1):
                mass = before[state] + (before[labels + state] if state else 0.0)
                if mass > 0.0:
                    for following in range(labels + 1):
                        sums[following] += mass * weights[state, following]
            for label in range(labels):
                sums[labels + 1 + label] = (
                    before[1 + label] * stays[0, label] + before[labels + 1 + label] * stays[1, label]
                )
        top = -np.inf
        for tag in range(2 * labels + 1):
            top = max(top, scores[word, tag])
        scale = 0.0
        for tag in range(2 * labels + 1):
            factors[word, tag] = np.exp(scores[word, tag] - top)
            scale += sums[tag] * factors[word, tag]
        if not scale > _TINY:
            return np.nan
        for tag in range(2 * labels + 1):
            factors[word, tag] /= scale
            alphas[word, tag] = sums[tag] * factors[word, tag]
            can_be = scores[word, tag] > -np.inf and (word > 0 or tag <= labels)
            if can_be and not alphas[word, tag] > _TINY:
                return np.nan
        total += top + np.log(scale)
    return total


@numba.njit(cache=True, nogil=True)
@no_type_check
def log_partitions(scores, lengths, start, turn, stay, end):
    """log Z of every row, in the type of `scores`; NaN where float64 does not hold its probabilities."""
    rows, words, tags = scores.shape
    labels = stay.shape[1]
    alphas, factors = np.empty((words, tags)), np.empty((words, tags))
    weights, stays = np.exp(turn.astype(np.float64)), np.exp(stay.astype(np.float64))
    first, last = np.exp(start.astype(np.float64)), np.exp(end.astype(np.float64))
    totals = np.empty(rows, dtype=scores.dtype)
    for row in range(rows):
        total = _forward(scores[row], lengths[row], first, weights, stays, alphas, factors)
        final = alphas[lengths[row] - 1]
        mass = final[: labels + 1].copy()
        mass[1:] += final[labels + 1 :]
        totals[row] = total + np.log((mass * last).sum())
    return totals


@numba.njit(cache=True, nogil=True)
@no_type_check
def expectations(outer, scores, lengths, start, turn, stay, end):
    """Expected counts of tags and transitions: the gradients of log Z in `scores` and the four potentials.

    `outer` [row] is the gradient in log Z, by which each row's counts are multiplied; rows of 0 are left out.
    """
    rows, words, tags = scores.shape
    labels = stay.shape[1]
    alphas, factors = np.empty((words, tags)), np.empty((words, tags))
    weights, stays = np.exp(turn.astype(np.float64)), np.exp(stay.astype(np.float64))
    reverse = np.ascontiguousarray(weights.T)
    first, last = np.exp(start.astype(np.float64)), np.exp(end.astype(np.float64))
    of_scores = np.zeros(scores.shape, dtype=scores.dtype)
    of_start, of_end = np.zeros(labels + 1), np.zeros(labels + 1)
    of_turn, of_stay = np.zeros((labels + 1, labels + 1)), np.zeros((2, labels))
    beta, ahead, closed = np.empty(tags), np.empty(tags), np.empty(labels + 1)
    for row in range(rows):
        length, weight = lengths[row], outer[row]
        if weight == 0.0:
            continue
        _forward(scores[row], length, first, weights, stays, alphas, factors)
        beta[: labels + 1] = last
        beta[labels + 1 :] = last[1:]
        beta /= (alphas[length - 1] * beta).sum()
        for state in range(labels + 1):
            mass = alphas[length - 1, state] + (alphas[length - 1, labels + state] if state else 0.0)
            of_end[state] += weight * mass * beta[state]
        for word in range(length - 1, -1, -1):
            for tag in range(tags):
                of_scores[row, word, tag] = weight * alphas[word, tag] * beta[tag]
                ahead[tag] = factors[word, tag] * beta[tag]
            if word == 0:
                for state in range(labels + 1):
                    of_start[state] += weight * first[state] * ahead[state]
                break
            before = alphas[word - 1]
            closed[:] = 0.0
            for following in range(labels + 1):
                mass = ahead[following]
                for state in range(labels + 1):
                    closed[state] += mass * reverse[following, state]
            for state in range(labels + 1):
                mass = weight * (before[state] + (before[labels + state] if state else 0.0))
                for following in range(labels + 1):
                    of_turn[state, following] += mass * ahead[following]
            beta[: labels + 1] = closed
            for label in range(labels):
                inside = ahead[labels + 1 + label]
                of_stay[0, label] += weight * before[1 + label] * inside
                of_stay[1, label] += weight * before[labels + 1 + label] * inside
                beta[1 + label] += stays[0, label] * inside
                beta[labels + 1 + label] = closed[1 + label] + stays[1, label] * inside
    return (
        of_scores,
        of_start.astype(start.dtype),
        (of_turn * weights).astype(turn.dtype),
        (of_stay * stays).astype(stay.dtype),
        of_end.astype(end.dtype),
    )


@numba.njit(cache=True, nogil=True)
@no_type_check
def best_paths(scores, lengths, start, turn, stay, end):
    """The most probable tags of every row (Viterbi), O beyond its length."""
    rows, words, tags = scores.shape
    labels = stay.shape[1]
    best = np.zeros((rows, words), dtype=np.int64)
    came = np.zeros((words, tags), dtype=np.int64)
    closed, origin = np.empty(labels + 1, dtype=scores.dtype), np.empty(labels + 1, dtype=np.int64)
    value, step = np.empty(tags, dtype=scores.dtype), np.empty(tags, dtype=scores.dtype)
    # Sums are monotone in floating point, too: a state that is not the best predecessor of any state by its
    # highest transition is not by the others.
    highest, lowest = np.empty(labels + 1, dtype=turn.dtype), np.empty(labels + 1, dtype=turn.dtype)
    for state in range(labels + 1):
        highest[state], lowest[state] = turn[state].max(), turn[state].min()
    for row in range(rows):
        length = lengths[row]
        if not length:
            continue
        value[: labels + 1] = start + scores[row, 0, : labels + 1]
        value[labels + 1 :] = -np.inf
        for word in range(1, length + 1):
            # What follows a span sees its label only, so the better of its tags B and I is kept.
            for state in range(labels + 1):
                origin[state], closed[state] = state, value[state]
                if state and value[labels + state] > value[state]:
                    origin[state], closed[state] = labels + state, value[labels + state]
            if word == length:
                break
            step[: labels + 1] = -np.inf
            reached = (closed + lowest).max()
            for state in range(labels + 1):
                if closed[state] + highest[state] < reached:
                    continue
                for following in range(labels + 1):
                    candidate = closed[state] + turn[state, following]
                    if candidate > step[following]:
                        step[following] = candidate
                        came[word, following] = origin[state]
            for label in range(labels):
                b_tag, i_tag = 1 + label, labels + 1 + label
                from_b, from_i = value[b_tag] + stay[0, label], value[i_tag] + stay[1, label]
                step[i_tag] = max(from_b, from_i)
                came[word, i_tag] = b_tag if from_b >= from_i else i_tag
            for tag in range(tags):
                value[tag] = step[tag] + scores[row, word, tag]
        tag = origin[np.argmax(closed + end)]
        for word in range(length - 1, -1, -1):
            best[row, word] = tag
            tag = came[word, tag]
    return best
