"""A linear-chain conditional random field over BIO tags (Lafferty et al. 2001)."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import numba
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_NEVER = -1e30
"""Stands for log 0 where minus infinity would make gradients NaN."""
_TINY = 1e-250
"""A sum below this may have lost summands to underflow and is taken again in log space."""


class Transitions(NamedTuple):
    """Log potentials of the chain; state 0 is O, state r the label r - 1, whether in its B or its I tag."""

    start: Float[Tensor, " state"]
    turn: Float[Tensor, "state state"]
    """From any state to O or to the B tag of a label."""
    stay: Float[Tensor, "2 label"]
    """From a label's B tag (row 0) or I tag (row 1) to its I tag."""
    end: Float[Tensor, " state"]


class BioCrf(nn.Module):
    """Distributions over tag sequences in which I-x follows only B-x or I-x.

    Tags are O, then B of every label, then I of every label. What follows a stretch depends on its label,
    not on its length (B-x and I-x share their transitions out), so a step costs labels² instead of
    (2 labels)² and a tag sequence without an I-x out of place never has probability zero.
    """

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.labels = labels
        self.start = nn.Parameter(torch.zeros(labels + 1))
        self.turn = nn.Parameter(torch.zeros(labels + 1, labels + 1))
        self.stay = nn.Parameter(torch.zeros(2, labels))
        self.end = nn.Parameter(torch.zeros(labels + 1))

    def transitions(self) -> Transitions:
        """The parameters, in float32 at least."""
        return Transitions(*map(_at_least_float32, (self.start, self.turn, self.stay, self.end)))

    def loss(
        self,
        scores: Float[Tensor, "row word tag"],
        tags: Int[Tensor, "row word"],
        lengths: Int[Tensor, " row"],
    ) -> Float[Tensor, " row"]:
        """Negative log-likelihood of each tag sequence, in nats; lengths are at least 1."""
        with torch.autocast(scores.device.type, enabled=False):
            transitions, scores = self.transitions(), _at_least_float32(scores)
            if scores.device.type == "cpu":
                partition = _LogPartition.apply(scores, lengths, *transitions)
            else:
                partition = log_partition(scores, lengths, transitions)
            return partition - path_score(scores, tags, lengths, transitions)

    def decode(
        self, scores: Float[Tensor, "row word tag"], lengths: Int[Tensor, " row"]
    ) -> Int[np.ndarray, "row word"]:
        """The most probable tag sequences (Viterbi), O beyond the lengths."""
        start, turn, stay, end = (value.detach().cpu().numpy() for value in self.transitions())
        emissions = _at_least_float32(scores.detach()).cpu().contiguous().numpy()
        return _viterbi(emissions, lengths.cpu().numpy(), start, turn, stay, end)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def path_score(
    scores: Float[Tensor, "row word tag"],
    tags: Int[Tensor, "row word"],
    lengths: Int[Tensor, " row"],
    transitions: Transitions,
) -> Float[Tensor, " row"]:
    """The log potential of given tag sequences, each well formed."""
    start, turn, stay, end = transitions
    labels = stay.shape[1]
    inside = tags > labels
    states = tags - labels * inside
    moves = turn[states[:, :-1], states[:, 1:]]
    if labels:
        stays = stay[inside[:, :-1].long(), (states[:, 1:] - 1).clamp(min=0)]
        moves = torch.where(inside[:, 1:], stays, moves)
    moves = functional.pad(moves, (1, 0)) + scores.gather(2, tags[:, :, None])[:, :, 0]
    within = torch.arange(tags.shape[1], device=tags.device) < lengths[:, None]
    last = states.gather(1, lengths[:, None] - 1)[:, 0]
    return (moves * within).sum(1) + start[states[:, 0]] + end[last]


def log_partition(
    scores: Float[Tensor, "row word tag"], lengths: Int[Tensor, " row"], transitions: Transitions
) -> Float[Tensor, " row"]:
    """The logarithm of the sum over all tag sequences, as plain tensor operations on any device."""
    start, turn, stay, end = transitions
    labels = stay.shape[1]
    weights = turn.exp()
    alpha = functional.pad(start, (0, labels), value=_NEVER) + scores[:, 0]
    for word in range(1, scores.shape[1]):
        left = _closed(alpha, labels)
        top = left.detach().amax(1, keepdim=True)
        opened = ((left - top).exp() @ weights).log() + top
        kept = torch.logaddexp(alpha[:, 1 : labels + 1] + stay[0], alpha[:, labels + 1 :] + stay[1])
        step = torch.cat((opened, kept), 1) + scores[:, word]
        alpha = torch.where((word < lengths)[:, None], step, alpha)
    return (_closed(alpha, labels) + end).logsumexp(1)


def _closed(alpha: Float[Tensor, "row tag"], labels: int) -> Float[Tensor, "row state"]:
    ended = torch.logaddexp(alpha[:, 1 : labels + 1], alpha[:, labels + 1 :])
    return torch.cat((alpha[:, :1], ended), 1)


class _LogPartition(torch.autograd.Function):
    """`log_partition` on the CPU; its gradient, the marginals, comes from the backward recursion."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, lengths: Tensor, *transitions: Tensor) -> Tensor:
        ctx.save_for_backward(scores, lengths, *transitions)
        arrays = [tensor.detach().contiguous().numpy() for tensor in (scores, lengths, *transitions)]
        return torch.from_numpy(_partitions(*arrays))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        arrays = [tensor.detach().contiguous().numpy() for tensor in (outer, *ctx.saved_tensors)]
        scores, *transitions = (torch.from_numpy(gradient) for gradient in _gradients(*arrays))
        return scores, None, *transitions


@numba.njit(cache=True, nogil=True)
@no_type_check
def _forward(scores, length, start, weights, stays, alphas, factors):
    """Fill scaled forward probabilities and, per tag, emission over scale; return log Z without the end.

    Emissions are scaled by their maximum and sums to 1 at every word, in float64: exact as long as nothing
    that matters in the end has fallen some 700 nats behind on the way.
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
        if scale < _TINY:
            logs = np.log(sums) + scores[word]
            top = logs.max()
            scale = np.exp(logs - top).sum()
            for tag in range(2 * labels + 1):
                factors[word, tag] = np.exp(scores[word, tag] - top) if sums[tag] > 0.0 else 0.0
        for tag in range(2 * labels + 1):
            factors[word, tag] /= scale
            alphas[word, tag] = sums[tag] * factors[word, tag]
        total += top + np.log(scale)
    return total


@numba.njit(cache=True, nogil=True)
@no_type_check
def _partitions(scores, lengths, start, turn, stay, end):
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
def _gradients(outer, scores, lengths, start, turn, stay, end):
    """Expected counts of tags and transitions, weighted by `outer`, by forward and backward recursion."""
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
def _viterbi(scores, lengths, start, turn, stay, end):
    rows, words, tags = scores.shape
    labels = stay.shape[1]
    best = np.zeros((rows, words), dtype=np.int64)
    came = np.zeros((words, tags), dtype=np.int64)
    closed, origin = np.empty(labels + 1, dtype=scores.dtype), np.empty(labels + 1, dtype=np.int64)
    value, step = np.empty(tags, dtype=scores.dtype), np.empty(tags, dtype=scores.dtype)
    for row in range(rows):
        length = lengths[row]
        if not length:
            continue
        value[: labels + 1] = start + scores[row, 0, : labels + 1]
        value[labels + 1 :] = -np.inf
        for word in range(1, length + 1):
            # A state's better tag, B or I, is all that matters to what is outside of it.
            for state in range(labels + 1):
                origin[state], closed[state] = state, value[state]
                if state and value[labels + state] > value[state]:
                    origin[state], closed[state] = labels + state, value[labels + state]
            if word == length:
                break
            step[: labels + 1] = -np.inf
            for state in range(labels + 1):
                for following in range(labels + 1):
                    candidate = closed[state] + turn[state, following]
                    if candidate > step[following]:
                        step[following] = candidate
                        came[word, following] = origin[state]
            for label in range(labels):
                begun, going = value[1 + label] + stay[0, label], value[labels + 1 + label] + stay[1, label]
                step[labels + 1 + label] = max(begun, going)
                came[word, labels + 1 + label] = 1 + label if begun >= going else labels + 1 + label
            for tag in range(tags):
                value[tag] = step[tag] + scores[row, word, tag]
        tag = origin[np.argmax(closed + end)]
        for word in range(length - 1, -1, -1):
            best[row, word] = tag
            tag = came[word, tag]
    return best
