"""A linear-chain conditional random field over BIO tags (Lafferty et al. 2001)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mtl.tasks import crf_tensors
from mtl.tasks.crf_recursions import best_paths, expectations, log_partitions
from mtl.tasks.precision import at_least_float32, has_float64

_NEVER = -1e30
"""Stands for log 0 where minus infinity would make gradients NaN."""


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

    Tags are O, then B of every label, then I of every label. What follows a span depends on its label,
    not on its length (B-x and I-x share the transitions to O and to B tags). So a step costs labels² instead
    of (2 labels)², and no well-formed tag sequence has probability zero.
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
        return Transitions(*map(at_least_float32, (self.start, self.turn, self.stay, self.end)))

    def loss(
        self,
        scores: Float[Tensor, "row word tag"],
        tags: Int[Tensor, "row word"],
        lengths: Int[Tensor, " row"],
    ) -> Float[Tensor, " row"]:
        """Negative log-likelihood of each tag sequence, in nats; lengths are at least 1."""
        with torch.autocast(scores.device.type, enabled=False):
            transitions, scores = self.transitions(), at_least_float32(scores)
            partition = _partition(scores, lengths, transitions)
            return partition - path_score(scores, tags, lengths, transitions)

    def decode(
        self, scores: Float[Tensor, "row word tag"], lengths: Int[Tensor, " row"]
    ) -> Int[np.ndarray, "row word"]:
        """The most probable tag sequences (Viterbi), O beyond the lengths."""
        potentials = [value.detach() for value in self.transitions()]
        table = torch.cat([part.flatten() for part in potentials]).cpu()  # the host waits once
        split = table.split([part.numel() for part in potentials])
        start, turn, stay, end = (
            values.view(part.shape).numpy() for values, part in zip(split, potentials, strict=True)
        )
        emissions = at_least_float32(scores.detach()).cpu().contiguous().numpy()
        return best_paths(emissions, lengths.cpu().numpy(), start, turn, stay, end)

    def marginals(
        self, scores: Float[Tensor, "row word tag"], lengths: Int[Tensor, " row"]
    ) -> Float[Tensor, "row word tag"]:
        """The probability of each tag at each word, in float32 at least; 0 beyond the lengths."""
        if not len(scores):
            return at_least_float32(scores)
        # Gradients of log Z; inference mode forbids them, also for tensors made under it.
        with torch.inference_mode(False), torch.enable_grad():
            emissions = at_least_float32(scores.detach()).clone().requires_grad_()
            transitions = Transitions(*(value.detach() for value in self.transitions()))
            partition = _partition(emissions, lengths.clone(), transitions)
            return torch.autograd.grad(partition.sum(), emissions)[0]


def path_score(
    scores: Float[Tensor, "row word tag"],
    tags: Int[Tensor, "row word"],
    lengths: Int[Tensor, " row"],
    transitions: Transitions,
) -> Float[Tensor, " row"]:
    """The log potentials of given tag sequences, which must be well formed; lengths are at least 1."""
    labels = transitions.stay.shape[1]
    kinds = labels + 1
    inside = (tags > labels).long()
    states = tags - labels * inside
    last = states.gather(1, lengths[:, None] - 1)
    # One table of all potentials, read once: start, turn and stay before each word, and end.
    table = torch.cat([part.flatten() for part in transitions])
    turns = states[:, :-1] * kinds + states[:, 1:]
    stays = inside[:, :-1] * labels + states[:, 1:] + (kinds * kinds - 1)
    moves = torch.where(tags[:, 1:] > labels, stays, turns) + kinds
    places = torch.cat((states[:, :1], moves, last + (len(table) - kinds)), 1)
    potentials = table.index_select(0, places.flatten()).view_as(places)
    of_words = potentials[:, :-1] + scores.gather(2, tags[:, :, None])[:, :, 0]
    within = torch.arange(tags.shape[1], device=tags.device) < lengths[:, None]
    return (of_words * within).sum(1) + potentials[:, -1]


def _partition(
    scores: Float[Tensor, "row word tag"], lengths: Int[Tensor, " row"], transitions: Transitions
) -> Float[Tensor, " row"]:
    if scores.device.type != "cpu":
        on_device = by_tensors if has_float64(scores.device) else log_partition
        return on_device(scores, lengths, transitions)
    partition: Tensor = _LogPartition.apply(scores, lengths, *transitions)
    rows = (partition.isnan() & scores.isfinite().all(2).all(1)).nonzero()[:, 0]
    if not len(rows):
        return partition
    exact = log_partition(
        scores[rows].double(), lengths[rows], Transitions(*(t.double() for t in transitions))
    )
    return partition.index_copy(0, rows, exact.to(partition.dtype))


def by_tensors(
    scores: Float[Tensor, "row word tag"], lengths: Int[Tensor, " row"], transitions: Transitions
) -> Float[Tensor, " row"]:
    """The log partition function on any device, in few operations; NaN where float64 does not suffice."""
    partition: Tensor = crf_tensors.LogPartition.apply(scores, lengths, *_tag_by_tag(transitions))
    return partition


def _tag_by_tag(
    transitions: Transitions,
) -> tuple[Float[Tensor, " tag"], Float[Tensor, "tag tag"], Float[Tensor, " tag"]]:
    """The chain's potentials of tags instead of states: start, steps and end."""
    start, turn, stay, end = transitions
    labels = stay.shape[1]
    same = torch.eye(labels, dtype=torch.bool, device=stay.device)
    inside = stay[:, :, None].where(same, _NEVER).flatten(0, 1)
    turns = torch.cat((turn, turn[1:]))
    steps = torch.cat((turns, functional.pad(inside, (0, 0, 1, 0), value=_NEVER)), 1)
    return functional.pad(start, (0, labels), value=_NEVER), steps, torch.cat((end, end[1:]))


def log_partition(
    scores: Float[Tensor, "row word tag"], lengths: Int[Tensor, " row"], transitions: Transitions
) -> Float[Tensor, " row"]:
    """The log partition function over all well-formed tag sequences, in logarithms throughout."""
    start, turn, stay, end = transitions
    labels = stay.shape[1]
    weights = turn.exp()
    alpha = functional.pad(start, (0, labels), value=_NEVER) + scores[:, 0]
    for word, of_word in enumerate(scores.unbind(1)[1:], 1):
        left = _closed(alpha, labels)
        top = left.detach().amax(1, keepdim=True)
        opened = ((left - top).exp() @ weights).log() + top
        continued = torch.logaddexp(alpha[:, 1 : labels + 1] + stay[0], alpha[:, labels + 1 :] + stay[1])
        step = torch.cat((opened, continued), 1) + of_word
        alpha = torch.where((word < lengths)[:, None], step, alpha)
    return (_closed(alpha, labels) + end).logsumexp(1)


def _closed(alpha: Float[Tensor, "row tag"], labels: int) -> Float[Tensor, "row state"]:
    ended = torch.logaddexp(alpha[:, 1 : labels + 1], alpha[:, labels + 1 :])
    return torch.cat((alpha[:, :1], ended), 1)


class _LogPartition(torch.autograd.Function):
    """`log_partition` on the CPU; its gradient, the expected counts, comes from the backward recursion."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, lengths: Tensor, *transitions: Tensor) -> Tensor:
        ctx.save_for_backward(scores, lengths, *transitions)
        arrays = [tensor.detach().contiguous().numpy() for tensor in (scores, lengths, *transitions)]
        return torch.from_numpy(log_partitions(*arrays))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        arrays = [tensor.detach().contiguous().numpy() for tensor in (outer, *ctx.saved_tensors)]
        scores, *transitions = (torch.from_numpy(gradient) for gradient in expectations(*arrays))
        return scores, None, *transitions
