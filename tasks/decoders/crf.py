"""A linear-chain conditional random field over BIO tags (Lafferty et al. 2001), and its recursions.

Tags are O, then B of every label, then I of every label; states are O and the labels. Public functions take
`scores` [row word tag], `lengths` [row], at least 1 except for `best_paths`, and the fields of
`mtl.tasks.decoders.crf.Transitions`.

Sums over predecessors are products of matrices in float64, and each word's are divided by their total. The
forward and the backward recursion run side by side, and the gradient follows from both without a graph: three
operations a word in all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mtl.tasks.decoders.decoder import Steps, at_least_float32, in_steps
from mtl.tasks.recursions import Recursion, compiled
from mtl.tasks.sentence import Span
from mtl.tasks.task import Labels

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

    by_tag: Tensor
    edge: Tensor

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.labels = labels
        self.start = nn.Parameter(torch.zeros(labels + 1))
        self.turn = nn.Parameter(torch.zeros(labels + 1, labels + 1))
        self.stay = nn.Parameter(torch.zeros(2, labels))
        self.end = nn.Parameter(torch.zeros(labels + 1))
        self.register_buffer("by_tag", torch.from_numpy(potentials_by_tag(labels)), persistent=False)
        # Scores beyond the ends of a sequence, where only the tag that stands for them is possible.
        edge = torch.tensor([*[_NEVER] * (2 * labels + 1), 0.0])
        self.register_buffer("edge", edge, persistent=False)

    def transitions(self) -> Transitions:
        """The parameters, in float32 at least."""
        return Transitions(*map(at_least_float32, (self.start, self.turn, self.stay, self.end)))

    def table(self, transitions: Transitions) -> Float[Tensor, " entry"]:
        """All potentials in a row, then those of impossible steps and of steps beyond the ends."""
        return torch.cat([*(part.flatten() for part in transitions), self.edge[-2:]])

    def loss(
        self,
        scores: Float[Tensor, "row word tag"],
        tags: Int[Tensor, "row word"],
        lengths: Int[Tensor, " row"],
    ) -> Float[Tensor, " row"]:
        """Negative log-likelihood of each tag sequence, in nats; lengths are at least 1."""
        with torch.autocast(scores.device.type, enabled=False):
            transitions, scores = self.transitions(), at_least_float32(scores)
            table = self.table(transitions)
            partition = self._partition(scores, lengths, transitions, table)
            return partition - path_score(scores, tags, lengths, table, self.by_tag)

    def log_partition(
        self, scores: Float[Tensor, "row word tag"], lengths: Int[Tensor, " row"]
    ) -> Float[Tensor, " row"]:
        """The log of the sum over all tag sequences, whose differences are log probabilities."""
        with torch.autocast(scores.device.type, enabled=False):
            transitions = self.transitions()
            return self._partition(at_least_float32(scores), lengths, transitions, self.table(transitions))

    def path_score(
        self,
        scores: Float[Tensor, "row word tag"],
        tags: Int[Tensor, "row word"],
        lengths: Int[Tensor, " row"],
    ) -> Float[Tensor, " row"]:
        """The log potentials of given tag sequences, which must be well formed; lengths are at least 1."""
        return path_score(scores, tags, lengths, self.table(self.transitions()), self.by_tag)

    def _partition(
        self,
        scores: Float[Tensor, "row word tag"],
        lengths: Int[Tensor, " row"],
        transitions: Transitions,
        table: Float[Tensor, " entry"],
    ) -> Float[Tensor, " row"]:
        if _on_cpu(scores):
            return _partition(scores, lengths, transitions)
        partition: Tensor = LogPartition.apply(scores, lengths, table.index_select(0, self.by_tag), self.edge)
        return partition

    @in_steps
    def decode(
        self, scores: Float[Tensor, "row word tag"], lengths: Int[Tensor, " row"]
    ) -> Steps[Int[np.ndarray, "row word"]]:
        """The most probable tag sequences (Viterbi), O beyond the lengths."""
        return best_paths(*(yield lengths, *self.chain(scores)))

    def chain(self, scores: Float[Tensor, "row word tag"]) -> tuple[Tensor, ...]:
        """What `best_paths` reads besides lengths: the scores and the fields of `Transitions`."""
        return at_least_float32(scores), *self.transitions()

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
            table = self.table(transitions)
            partition = self._partition(emissions, lengths.clone(), transitions, table)
            return torch.autograd.grad(partition.sum(), emissions)[0]


def tagged_spans(tags: Int[np.ndarray, " word"], labels: Labels) -> tuple[Span, ...]:
    """The spans that a well-formed tag sequence encodes; tags are numbered as in `BioCrf`."""
    starts: list[int] = []
    ends: list[int] = []
    found: list[str] = []
    inside = tags.nonzero()[0]
    for word, tag in zip(inside.tolist(), tags[inside].tolist(), strict=True):
        if tag <= len(labels):
            starts.append(word)
            ends.append(word + 1)
            found.append(labels[tag - 1])
        else:
            ends[-1] = word + 1
    return tuple(map(Span, starts, ends, found))


def tag_names(labels: Labels) -> tuple[str, ...]:
    """The names of tags, numbered as in `BioCrf`."""
    return ("O", *(f"{place}-{name}" for place in "BI" for name in labels.names))


def numbered_tags(spans: Iterable[Span], words: int, labels: Labels) -> Int[np.ndarray, " word"]:
    """The tags of spans without overlaps, numbered as in `BioCrf`; spans with other labels are left out."""
    tags = np.zeros(words, dtype=np.int64)
    for start, end, label in spans:
        index = labels.index(label)
        if index >= 0:
            tags[start] = 1 + index
            tags[start + 1 : end] = 1 + len(labels) + index
    return tags


def path_score(
    scores: Float[Tensor, "row word tag"],
    tags: Int[Tensor, "row word"],
    lengths: Int[Tensor, " row"],
    table: Float[Tensor, " entry"],
    by_tag: Int[Tensor, " step"],
) -> Float[Tensor, " row"]:
    """`BioCrf.path_score`, given its `table`."""
    edge = scores.shape[2]
    within = torch.arange(tags.shape[1], device=tags.device) < lengths[:, None]
    path = functional.pad(torch.where(within, tags, edge), (1, 1), value=edge)
    steps = torch.add(path[:, 1:], path[:, :-1], alpha=edge + 1)
    potentials = table.index_select(0, by_tag.index_select(0, steps.flatten())).view_as(steps)
    of_words = scores.gather(2, tags[:, :, None]).squeeze(2) * within
    return of_words.sum(1) + potentials.sum(1)


def _on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _partition(
    scores: Float[Tensor, "row word tag"], lengths: Int[Tensor, " row"], transitions: Transitions
) -> Float[Tensor, " row"]:
    partition: Tensor = _LogPartition.apply(scores, lengths, *transitions)
    rows = (partition.isnan() & scores.isfinite().all(2).all(1)).nonzero()[:, 0]
    if not len(rows):
        return partition
    exact = tagging_log_partition(
        scores[rows].double(), lengths[rows], Transitions(*(t.double() for t in transitions))
    )
    return partition.index_copy(0, rows, exact.to(partition.dtype))


def potentials_by_tag(labels: int) -> Int[np.ndarray, " step"]:
    """Where the potential of each step from a tag to a tag is in `BioCrf.table`.

    Behind the tags comes one that stands for what lies before and behind a sequence.
    """
    kinds = labels + 1
    sizes = np.cumsum([kinds, kinds * kinds, 2 * labels, kinds])
    never, outside = sizes[-1], sizes[-1] + 1
    start, turn, stay, end = np.split(np.arange(never, dtype=np.int32), sizes[:-1])
    turn, inside = turn.reshape(kinds, kinds), np.full((2 * labels + 2, labels), never, dtype=np.int32)
    of_label = np.arange(labels)
    inside[1 + of_label, of_label], inside[1 + labels + of_label, of_label] = stay.reshape(2, labels)
    return np.concatenate(
        [
            np.concatenate([turn, turn[1:], start[None]]),
            inside,
            np.concatenate([end, end[1:], [outside]], dtype=np.int32)[:, None],
        ],
        1,
    ).reshape(-1)


def tagging_log_partition(
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
    """`tagging_log_partition` on the CPU; its gradient, expected counts, comes from backward recursion."""

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


_TINY = 1e-290
"""A tag less probable than this is left out, with all paths through it."""
_SUM = 1e-300
"""More than underflow can take from any sum over predecessors."""
_NEGLIGIBLE = -37.0
"""The log of a share of Z that is too small for float64 to add to 1."""
_TOGETHER = 8
"""Sequences that read each row of a table together: tables of thousands of labels fit in no cache."""


@compiled
@no_type_check
def _close(tags, states):
    """Add B and I of each label."""
    labels = len(states) - 1
    states[0] = tags[0]
    for state in range(1, labels + 1):
        states[state] = tags[state] + tags[labels + state]


@compiled
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


@compiled
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


@compiled
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


@compiled
@no_type_check
def best_paths(lengths, scores, start, turn, stay, end):
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


_AGREE = 1e-9
"""By how much log Z may differ between the two recursions."""


class LogPartition(torch.autograd.Function):
    """log Z of every row on any device, in few operations; NaN where float64 does not suffice.

    `chain` has the potential of each step (`potentials_by_tag`), `edge` the scores of tags outside of a
    sequence. Every row begins and ends outside, and is padded with the outside, at no cost.

    Lengths are at least 1. If scores of one word lie about 700 nats apart, float64 may not be able to
    represent the weight of a path relative to others. The two recursions then disagree, and log Z is NaN.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Float[Tensor, "row word tag"],
        lengths: Int[Tensor, " row"],
        chain: Float[Tensor, " step"],
        edge: Float[Tensor, " kind"],
    ) -> Float[Tensor, " row"]:
        partition, *saved = _BOTH_WAYS(scores, lengths, chain, edge)
        ctx.save_for_backward(*saved)
        return partition

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Float[Tensor, " row"]) -> tuple[Tensor | None, ...]:
        marginals, left, following, weights = ctx.saved_tensors
        of_scores = marginals[1:, :, :-1].transpose(0, 1) * outer[:, None, None]
        pairs = (left * outer[:, None]).flatten(0, 1).mT @ following.flatten(0, 1)
        return of_scores.to(outer.dtype), None, (pairs * weights).flatten().to(outer.dtype), None


def _partition_by_tensors(
    scores: Float[Tensor, "row word tag"],
    lengths: Int[Tensor, " row"],
    chain: Float[Tensor, " step"],
    edge: Float[Tensor, " kind"],
) -> tuple[Tensor, ...]:
    """log Z, and for its gradient marginals, their left parts, what follows, and the weights of steps."""
    weights = chain.double().exp().view(len(edge), len(edge))
    before = torch.arange(scores.shape[1] + 2, device=scores.device).roll(1)  # words before each place
    inside = functional.pad(scores.double(), (0, 1, 1, 1), value=-torch.inf)
    emissions = torch.where((before >= lengths[:, None])[:, :, None], edge, inside)
    tops = emissions.amax(2, keepdim=True)
    factors = (emissions - tops).exp()
    sums, masses = _both_ways(torch.stack((factors, factors.flip(1))), weights)
    # At each place but the last: sums over what follows it, and what comes next.
    ahead, following = sums[1:, 1, :, :-1].flip(0), masses[:-1, 1].flip(0)
    forth = masses[:-1, 0]
    left = forth / (forth * ahead).sum(2, keepdim=True)
    scales = torch.cat((sums[1:-1, :, :, -1], sums[-1:, :, :, -2]))  # at last, only the way out counts
    totals, others = scales.log().sum(0)
    agree = (totals - others).abs() <= _AGREE
    partition = (totals + tops.sum((1, 2))).where(agree, torch.nan).to(scores.dtype)
    return partition, left * ahead, left, following, weights


def _both_ways(
    factors: Float[Tensor, "2 row place kind"], weights: Float[Tensor, "kind kind"]
) -> tuple[Float[Tensor, "place 2 row more"], Float[Tensor, "place 2 row kind"]]:
    """Both recursions: each place's sums over neighbours with their total behind them, and its masses.

    The masses are the sums over their total, times the place's factors. The second recursion reads the places
    from the last to the first. Both begin outside, and their last masses are not made.
    """
    _, rows, places, kinds = factors.shape
    steps = torch.stack((weights, weights.T))
    steps = torch.cat((steps, steps.sum(2, keepdim=True)), 2)
    sums = factors.new_empty(places, 2, rows, kinds + 1)
    masses = factors.new_empty(places, 2, rows, kinds)
    of_kinds, totals, made = sums[..., :-1].unbind(0), sums[..., -1:].unbind(0), masses.unbind(0)
    for place, (of_place, whole) in enumerate(zip(factors.unbind(2), sums.unbind(0), strict=True)):
        if place == 0:
            made[0].copy_(of_place)
            continue
        torch.bmm(made[place - 1], steps, out=whole)
        if place < places - 1:
            torch.mul(of_kinds[place], of_place, out=made[place]).div_(totals[place])
    return sums, masses


_BOTH_WAYS = Recursion(
    _partition_by_tensors,
    inputs=("row word tag", "row", "step", "kind"),
    fills=(0.0, 1.0, 0.0, 0.0),
    outputs=("row", "word+1 row kind", "word+1 row kind", "word+1 row kind", "kind kind"),
    steps={"row": 16, "word": 8},
)
