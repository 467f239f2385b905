"""Constituency parsing: a span CRF over binarised brackets, then labels for the brackets of the best tree.

Partition function and marginals come from numba on the CPU, and width by width on other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mtl.tasks.decoders.decoder import (
    Biaffine,
    Decoder,
    Item,
    Mlp,
    Steps,
    StructureScore,
    WordMask,
    WordVectors,
    at_least_float32,
    in_steps,
    k_best,
    label_losses,
    one_after_another,
    scores_at,
    sums_by_sentence,
)
from mtl.tasks.in_words import counted
from mtl.tasks.recursions import Recursion, compiled
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.spans import NULL, binarise, constituents, restore
from mtl.tasks.task import Labels


class SpanBatch(NamedTuple):
    """`SpanTargets` of a batch one after the other (no padding), with their sentence's row.

    Places are made on the host, which has them before a GPU needs them.
    """

    rows: Int[Tensor, " span"]
    brackets: Int[Tensor, " span"]
    """Where each span is in [batch boundary boundary], without these axes."""
    starts: Int[Tensor, " span"]
    """Where its start is in [batch boundary]."""
    ends: Int[Tensor, " span"]
    labels: Int[Tensor, " span"]


class SpanTargets(NamedTuple):
    """The 2n - 1 brackets of a binarised tree: boundaries and the label's index."""

    starts: Int[np.ndarray, " span"]
    ends: Int[np.ndarray, " span"]
    labels: Int[np.ndarray, " span"]

    @staticmethod
    def collate(targets: Sequence[SpanTargets], width: int) -> SpanBatch:
        rows, starts, ends, labels = one_after_another(targets)
        return SpanBatch(rows, *_places(rows, starts, ends, width + 1), labels)


class _SpanScores(NamedTuple):
    """Scores of every span as a bracket, and the vectors of all boundaries that labels are scored from."""

    brackets: Float[Tensor, "batch boundary boundary"]
    starts: Float[Tensor, "batch boundary label_dim"]
    ends: Float[Tensor, "batch boundary label_dim"]


def bracket_targets(sentence: Sentence, layer: str, labels: Labels) -> SpanTargets:
    """The brackets of an annotated sentence's binarised tree.

    Raises `ValueError` if the sentence has no tree over its words, or its constituents cannot be binarised.
    """
    tree = sentence.layer(layer)
    if tree is None or sum(1 for _ in tree.leaves()) != len(sentence):
        raise ValueError(f"sentence '{sentence.id}': needs a tree over its {counted(len(sentence), 'word')}")
    brackets = binarise(constituents(tree), len(sentence))
    table = np.array([(start, end, labels.index(label)) for start, end, label in brackets])
    return SpanTargets(*table.reshape(-1, 3).T.astype(np.int64))


def _places(rows: Any, starts: Any, ends: Any, boundaries: int) -> tuple[Any, Any, Any]:
    """`brackets`, `starts` and `ends` of a `SpanBatch`, of arrays or tensors."""
    first = rows * boundaries
    return (first + starts) * boundaries + ends, first + starts, first + ends


class ConDecoder(Decoder):
    """Two stages (Zhang et al. 2020): brackets by a span CRF, labels only for the brackets of one tree.

    A boundary is represented by the words on both of its sides; learned vectors stand in for a word left of
    the first and right of the last. A bracket's label is scored from the sum of its two boundaries' vectors
    by one hidden layer, at a fraction of the cost of a bilinear form per label.

    `viterbi` decodes the most probable bracketing, `mbr` (minimum Bayes risk) the one with the greatest
    expected number of correct brackets: the sum of their marginals (Goodman 1996).
    """

    narrow = True

    def __init__(
        self,
        hidden: int,
        labels: Labels,
        span_dim: int,
        label_dim: int,
        dropout: float,
        decoding: Literal["viterbi", "mbr"] = "viterbi",
    ) -> None:
        super().__init__()
        self.decoding = decoding
        self.labels = labels
        self.span_dim = span_dim
        self.label_dim = label_dim
        self.edges = nn.Parameter(torch.randn(2, hidden) / hidden**0.5)
        self.span = Mlp(2 * hidden, 2 * span_dim, dropout)
        self.bracket = Biaffine(span_dim, 1)
        self.boundary = nn.Linear(2 * hidden, 2 * label_dim)
        self.dropout = nn.Dropout(dropout)
        self.label = nn.Linear(label_dim, len(labels))

    def forward(self, words: WordVectors, mask: WordMask) -> _SpanScores:
        left, right = self.edges.to(words.dtype)
        before = torch.cat([left.expand(words.shape[0], 1, -1), words], 1)
        after = torch.cat(
            [torch.where(mask[:, :, None], words, right), right.expand(words.shape[0], 1, -1)], 1
        )
        boundaries = torch.cat([before, after], 2)
        starts, ends = self.span(boundaries).split(self.span_dim, 2)
        brackets = at_least_float32(self.bracket(starts, ends).squeeze(3))
        label_starts, label_ends = self.boundary(boundaries).split(self.label_dim, 2)
        return _SpanScores(brackets, label_starts, label_ends)

    def loss(self, scores: _SpanScores, targets: SpanBatch, mask: WordMask) -> Float[Tensor, " batch"]:
        rows, places, starts, ends, labels = targets
        brackets = span_crf_loss(scores.brackets, mask.sum(1), rows, places)
        of_labels = label_losses(self._label_scores(scores, starts, ends), labels)
        return brackets.index_add(0, rows, of_labels.to(brackets.dtype))

    def structure_score(
        self, scores: _SpanScores, targets: SpanBatch, mask: WordMask, label: int | None = None
    ) -> StructureScore:
        if label is not None:
            targets = SpanBatch(*(column[targets.labels == label] for column in targets))
        rows, places, starts, ends, labels = targets
        brackets = scores.brackets.flatten().index_select(0, places)
        of_labels = scores_at(self._label_scores(scores, starts, ends), labels)
        return sums_by_sentence(brackets + of_labels, rows, len(mask))

    @in_steps
    def decode(self, scores: _SpanScores, mask: WordMask) -> Steps[list[tuple[Span, ...]]]:
        brackets = scores.brackets.detach()
        if self.decoding == "mbr":
            brackets = span_marginals(brackets, mask.sum(1))
        chart, lengths = yield brackets, mask.sum(1)
        best = best_brackets(chart, lengths)
        [places] = yield (np.stack(_places(*best, chart.shape[1])[1:]),)
        [chosen] = yield (self._label_scores(scores, *places).argmax(1),)
        names = self.labels.names
        labelled = [
            Span(start, end, names[label])
            for start, end, label in zip(
                best.starts.tolist(), best.ends.tolist(), chosen.tolist(), strict=True
            )
        ]
        last = np.maximum(2 * lengths - 1, 0).cumsum().tolist()
        return [restore(labelled[a:b]) for a, b in zip([0, *last], last, strict=False)]

    def alternatives(
        self, scores: _SpanScores, mask: WordMask, decoded: Sequence[tuple[Span, ...]], k: int
    ) -> list[tuple[Item, ...]]:
        """Chains of labels (`S VP`) of each predicted constituent.

        The probability of a chain is the marginal of the span as a bracket times the softmax over chains, one
        of which stands for brackets that are no constituents.
        """
        spans = [dict.fromkeys((start, end) for start, end, _ in of_tree) for of_tree in decoded]
        places = [(row, *span) for row, of_tree in enumerate(spans) for span in of_tree]
        index = torch.tensor(places, dtype=torch.long, device=mask.device).view(-1, 3)
        rows, starts, ends = index.unbind(1)
        marginals = span_marginals(scores.brackets.detach(), mask.sum(1))[rows, starts, ends]
        chains = self._label_scores(scores, *_places(rows, starts, ends, mask.shape[1] + 1)[1:]).softmax(1)
        kept = [number for number, name in enumerate(self.labels.names) if name != NULL]
        names = [self.labels[number] for number in kept]
        best = iter(k_best((marginals[:, None] * chains)[:, kept], names, k))
        return [
            tuple([Item("constituent", start, end, next(best)) for start, end in of_tree])
            for of_tree in spans
        ]

    def _label_scores(
        self, scores: _SpanScores, starts: Int[Tensor, " span"], ends: Int[Tensor, " span"]
    ) -> Float[Tensor, "span label"]:
        left = scores.starts.flatten(0, 1).index_select(0, starts)
        right = scores.ends.flatten(0, 1).index_select(0, ends)
        return at_least_float32(self.label(self.dropout(functional.leaky_relu(left + right, 0.1))))


_NEVER = -1e30
"""The score of a span that no tree has; minus infinity would make differences NaN."""
InsideOutside = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""From scores and lengths to log partitions and marginals."""


def span_crf_loss(
    scores: Float[Tensor, "batch boundary boundary"],
    lengths: Int[Tensor, " batch"],
    rows: Int[Tensor, " span"],
    brackets: Int[Tensor, " span"],
) -> Float[Tensor, " batch"]:
    """Minus the log-probability of each sentence's gold bracketing, in nats.

    `rows` and `brackets` are those of the gold spans of all sentences (`SpanBatch`); see
    `bracketing_log_partition` for the others.
    """
    scores = at_least_float32(scores)
    gold = scores.flatten().index_select(0, brackets)
    return bracketing_log_partition(scores, lengths).index_add(0, rows, gold, alpha=-1)


def bracketing_log_partition(
    scores: Float[Tensor, "batch boundary boundary"],
    lengths: Int[Tensor, " batch"],
    inside_outside: InsideOutside | None = None,
) -> Float[Tensor, " batch"]:
    """The log partition function over all binary bracketings; its gradient is the spans' marginals.

    `scores[b, i, j]` scores the words i to j - 1 as one bracket; only 0 <= i < j <= length is read. Lengths
    are at least 1. Scores of less than 32 bits are cast to float32, which is then the type of the result. By
    default `inside_outside` is `by_numba` for scores on the CPU, where it is fastest, and
    `inside_outside_by_tensors` on other devices.
    """
    scores = at_least_float32(scores)
    return _LogPartition.apply(scores, lengths, inside_outside or _fastest(scores))


def span_marginals(
    scores: Float[Tensor, "batch boundary boundary"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, "batch boundary boundary"]:
    """The probability that each span is a bracket, without a gradient; 0 where there is no span."""
    return _fastest(scores)(scores, lengths)[1]


def _fastest(scores: Float[Tensor, "batch boundary boundary"]) -> InsideOutside:
    return by_numba if scores.device.type == "cpu" else _INSIDE_OUTSIDE


class _LogPartition(Function):
    """Computes the marginals along with the partition, so that the backward pass is one product."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Float[Tensor, "batch boundary boundary"],
        lengths: Int[Tensor, " batch"],
        inside_outside: InsideOutside,
    ) -> Float[Tensor, " batch"]:
        partition, marginals = inside_outside(scores, lengths)
        ctx.save_for_backward(marginals)
        return partition

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, " batch"]) -> tuple[Tensor, None, None]:
        (marginals,) = ctx.saved_tensors
        return gradient[:, None, None] * marginals, None, None


def inside_outside_by_tensors(
    scores: Float[Tensor, "batch boundary boundary"], lengths: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch boundary boundary"]]:
    """Log partitions and marginals on any device, in float64: three operations for all spans of one width.

    A bracketing is a triangulation of the polygon whose corners are the boundaries: words are its sides, and
    the side that closes it stands for the sentence. A span's outside is the inside of the corners beyond it,
    from its end around to its start, so that one pass around the polygon has both.

    In shorter sentences, words of padding hang on the sentence one after the other, with scores of 0; this
    adds one way, and nothing to its score.
    """
    batch, width, _ = scores.shape
    boundaries = torch.arange(width, device=scores.device)
    within = boundaries <= lengths[:, None, None]
    there = within & (boundaries[:, None] < boundaries)
    # Spans of padding that no such tree has: of two words or more, and not from the sentence's start.
    never = (boundaries.roll(1)[:, None] < boundaries - 2) * _NEVER
    known = torch.where(there, scores.detach(), torch.where(within, 0.0, never))
    sides = known + known.mT
    # Twice around in both directions, so that no span ends; a row more, since copies of spans reach beyond.
    size = 2 * width
    chart = sides.new_empty(batch, size + 1, size, dtype=torch.float64)
    chart[:, :size].view(batch, 2, width, 2, width).copy_(sides[:, None, :, None])
    start = size + 1
    strides = (chart.stride(0), start)
    for words in range(2, width):
        left = chart.as_strided((batch, width, words - 1), (*strides, 1), 1)
        right = chart.as_strided((batch, width, words - 1), (*strides, size), size + words)
        spans = chart.as_strided((batch, 2, width), (chart.stride(0), width * start, start), words)
        spans += (left + right).logcumsumexp(2)[:, None, :, -1]
    inside, outside = chart[:, :width, :width], chart[:, :width, width:].mT
    partition = inside[:, 0, -1]
    marginals = torch.where(there, (inside + outside - (sides + partition[:, None, None])).exp(), 0.0)
    dtype = torch.promote_types(scores.dtype, torch.float32)
    return partition.to(dtype), marginals.to(dtype)


_INSIDE_OUTSIDE = Recursion(
    inside_outside_by_tensors,
    inputs=("batch boundary boundary", "batch"),
    fills=(0.0, 1.0),
    outputs=("batch", "batch boundary boundary"),
    steps={"batch": 8, "boundary": 8},
)


def by_numba(
    scores: Float[Tensor, "batch boundary boundary"], lengths: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch boundary boundary"]]:
    """Log partitions and marginals, sentence by sentence on the CPU; sums are taken in float64."""
    dtype = torch.promote_types(scores.dtype, torch.float32)
    partition = torch.zeros(len(scores), dtype=dtype)
    marginals = torch.zeros(scores.shape, dtype=dtype)
    _inside_outside(
        scores.detach().to(dtype).contiguous().numpy(), lengths.numpy(), partition.numpy(), marginals.numpy()
    )
    return partition, marginals


@compiled
@no_type_check
def _inside_outside(scores, lengths, partition, marginals):
    width = scores.shape[1]
    by_start, by_end = np.empty((width, width)), np.empty((width, width))
    mass_by_start, mass_by_end = np.empty((width, width)), np.empty((width, width))
    weights = np.empty(width)
    for row in range(len(scores)):
        length = lengths[row]
        if length == 0:
            continue
        for end in range(1, length + 1):
            by_start[end - 1, end] = by_end[end, end - 1] = scores[row, end - 1, end]
            for start in range(end - 2, -1, -1):
                highest = -np.inf
                for middle in range(start + 1, end):
                    weights[middle] = by_start[start, middle] + by_end[end, middle]
                    highest = max(highest, weights[middle])
                total = 0.0
                for middle in range(start + 1, end):
                    total += np.exp(weights[middle] - highest)
                total = scores[row, start, end] + highest + np.log(total)
                by_start[start, end] = by_end[end, start] = total
        partition[row] = by_start[0, length]

        mass_by_start[: length + 1, : length + 1] = 0.0
        mass_by_end[: length + 1, : length + 1] = 0.0
        mass_by_start[0, length] = 1.0
        for size in range(length, 0, -1):
            for start in range(length - size + 1):
                end = start + size
                mass = mass_by_start[start, end] + mass_by_end[end, start]
                marginals[row, start, end] = mass
                if size == 1 or mass < 1e-12:  # less mass changes no float32 gradient
                    continue
                splits_total = by_start[start, end] - scores[row, start, end]
                for middle in range(start + 1, end):
                    part = mass * np.exp(by_start[start, middle] + by_end[end, middle] - splits_total)
                    mass_by_start[start, middle] += part
                    mass_by_end[end, middle] += part


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


@compiled
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


@compiled
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
