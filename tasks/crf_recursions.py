"""The recursions of `BioCrf` on the CPU: forward and backward for several sequences together, and Viterbi.

Tags are O, then B of every label, then I of every label; states are O and the labels. Public functions take
`scores` [row word tag], `lengths` [row], at least 1 except for `best_paths`, and the fields of
`mtl.tasks.crf.Transitions`.
"""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np

_TINY = 1e-290
"""A tag less probable than this is left out, with all paths through it."""
_SUM = 1e-300
"""More than underflow can take from any sum over predecessors."""
_NEGLIGIBLE = -37.0
"""The log of a share of Z that is too small for float64 to add to 1."""
_TOGETHER = 8
"""Sequences that read each row of a table together: tables of thousands of labels fit in no cache."""


@numba.njit(cache=True, nogil=True)
@no_type_check
def _close(tags, states):
    """Add B and I of each label."""
    labels = len(states) - 1
    states[0] = tags[0]
    for state in range(1, labels + 1):
        states[state] = tags[state] + tags[labels + state]


@numba.njit(cache=True, nogil=True)
@no_type_check
def _forward(scores, lengths, start, weights, stays, alphas, factors):
    """Fill `alphas` and `factors` [row word tag]; return log Z, what is left out, and the last word's states.

    log Z is without the end potentials, and NaN where float64 holds no probability. `alphas` are forward
    probabilities that sum to 1 at every word; `factors` are what the sums over predecessors were multiplied
    by (exp of the emission over the scale). `start`, `weights` and `stays` are exponentiated potentials. A
    tag that falls some 660 nats behind the others has probability 0. What is left out in this way is bounded
    by the log of a mass to which each word adds its highest transition and all of its tags.
    """
    rows, labels = len(lengths), stays.shape[1]
    highest = weights.max()
    if labels:
        highest = max(highest, stays.max())
    totals, left_out = np.zeros(rows), np.full(rows, -np.inf)
    opened, masses = np.zeros((rows, labels + 1)), np.zeros((rows, labels + 1))
    sums = np.zeros(2 * labels + 1)
    going_on = lengths.copy()
    for word in range(lengths.max()):
        if word == 0:
            opened[:] = start
        else:
            np.dot(masses, weights, opened)
        for row in range(rows):
            if word >= going_on[row]:
                continue
            emissions, alpha, factor = scores[row, word], alphas[row, word], factors[row, word]
            sums[: labels + 1] = opened[row]
            before = alphas[row, word - 1]
            if word:
                for label in range(labels):
                    from_b, from_i = before[1 + label], before[labels + 1 + label]
                    sums[labels + 1 + label] = from_b * stays[0, label] + from_i * stays[1, label]
            else:
                sums[labels + 1 :] = 0.0
            top = emissions.max()
            scale = every = 0.0
            for tag in range(2 * labels + 1):
                chance = np.exp(emissions[tag] - top)
                factor[tag] = chance if chance > _TINY else 0.0
                scale += sums[tag] * factor[tag]
                every += factor[tag]
            if not _TINY < scale < np.inf:
                totals[row], going_on[row] = np.nan, 0
                masses[row] = 0.0
                continue
            lost = -np.inf
            for tag in range(2 * labels + 1):
                factor[tag] /= scale
                alpha[tag] = sums[tag] * factor[tag]
                if not alpha[tag] > _TINY:
                    alpha[tag] = 0.0
                    # The bound has the tag I of a label already if its tags were left out before.
                    if tag <= labels or (word and (before[tag] > 0.0 or before[tag - labels] > 0.0)):
                        lost = max(lost, np.log(max(sums[tag], _SUM)) + emissions[tag] - top)
            left_out[row] += np.log(highest * every / scale)
            left_out[row] = np.logaddexp(left_out[row], lost + np.log((2 * labels + 1) / scale))
            totals[row] += top + np.log(scale)
            _close(alpha, masses[row])
    return totals, left_out, masses


@numba.njit(cache=True, nogil=True)
@no_type_check
def log_partitions(scores, lengths, start, turn, stay, end):
    """log Z of every row, in the type of `scores`; NaN where float64 does not hold what counts in it."""
    rows, words, tags = scores.shape
    alphas, factors = np.empty((_TOGETHER, words, tags)), np.empty((_TOGETHER, words, tags))
    weights, stays = np.exp(turn.astype(np.float64)), np.exp(stay.astype(np.float64))
    first, last = np.exp(start.astype(np.float64)), np.exp(end.astype(np.float64))
    totals = np.empty(rows, dtype=scores.dtype)
    for done in range(0, rows, _TOGETHER):
        block = slice(done, done + _TOGETHER)
        some, left_out, masses = _forward(
            scores[block], lengths[block], first, weights, stays, alphas, factors
        )
        for row in range(len(some)):
            ending = (masses[row] * last).sum()
            negligible = left_out[row] + np.log(last.max()) < np.log(ending) + _NEGLIGIBLE
            held = negligible and _TINY < ending < np.inf
            totals[done + row] = some[row] + np.log(ending) if held else np.nan
    return totals


@numba.njit(cache=True, nogil=True)
@no_type_check
def expectations(outer, scores, lengths, start, turn, stay, end):
    """Expected counts of tags and transitions: the gradients of log Z in `scores` and the four potentials.

    `outer` [row] is the gradient in log Z, by which each row's counts are multiplied; rows of 0 are left out.
    """
    rows, words, tags = scores.shape
    labels = stay.shape[1]
    alphas, factors = np.empty((_TOGETHER, words, tags)), np.empty((_TOGETHER, words, tags))
    weights, stays = np.exp(turn.astype(np.float64)), np.exp(stay.astype(np.float64))
    first, last = np.exp(start.astype(np.float64)), np.exp(end.astype(np.float64))
    of_scores = np.zeros(scores.shape, dtype=scores.dtype)
    of_start, of_end = np.zeros(labels + 1), np.zeros(labels + 1)
    of_turn, of_stay = np.zeros((labels + 1, labels + 1)), np.zeros((2, labels))
    beta, ahead = np.empty(tags), np.empty(tags)
    for done in range(0, rows, _TOGETHER):
        block = slice(done, done + _TOGETHER)
        weighed, some = outer[block], np.where(outer[block] == 0.0, 0, lengths[block])
        count, longest = len(some), max(some.max(), 1)
        masses = _forward(scores[block], some, first, weights, stays, alphas, factors)[2]
        # For all rows at each word: probabilities of states, and weights of entering them.
        states, arriving = np.zeros((longest, count, labels + 1)), np.zeros((longest, count, labels + 1))
        closed, inside = np.empty((count, labels + 1)), np.empty((count, labels))
        for word in range(longest - 1, -1, -1):
            if word < longest - 1:
                np.dot(arriving[word + 1], weights.T, closed)
            for row in range(count):
                weight, alpha = weighed[row], alphas[row, word]
                if word >= some[row]:
                    continue
                if word == some[row] - 1:
                    beta[: labels + 1] = last / (masses[row] * last).sum()
                    beta[labels + 1 :] = beta[1 : labels + 1]
                    of_end += weight * masses[row] * beta[: labels + 1]
                else:
                    beta[: labels + 1] = closed[row]
                    for label in range(labels):
                        b_tag, i_tag, within = 1 + label, labels + 1 + label, inside[row, label]
                        of_stay[0, label] += weight * alpha[b_tag] * within
                        of_stay[1, label] += weight * alpha[i_tag] * within
                        beta[i_tag] = beta[b_tag] + stays[1, label] * within
                        beta[b_tag] += stays[0, label] * within
                for tag in range(tags):
                    if alpha[tag] == 0.0:
                        beta[tag] = 0.0  # it may be infinite where a tag is left out
                    of_scores[done + row, word, tag] = weight * alpha[tag] * beta[tag]
                    ahead[tag] = factors[row, word, tag] * beta[tag]
                arriving[word, row], inside[row] = ahead[: labels + 1], ahead[labels + 1 :]
                _close(alpha, states[word, row])
                states[word, row] *= weight
        of_start += first * np.dot(weighed.astype(np.float64), arriving[0])
        before, after = states[:-1].reshape(-1, labels + 1), arriving[1:].reshape(-1, labels + 1)
        of_turn += np.dot(before.T, after)
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
