"""Named entities: a biaffine classifier over all spans, decoded without overlaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mtl.tasks.compiled import compiled
from mtl.tasks.decoders.decoder import (
    Biaffine,
    Decoder,
    Item,
    Mlp,
    SharedDropout,
    StructureScore,
    at_least_float32,
    k_best,
    one_after_another,
    sums_by_sentence,
)
from mtl.tasks.decoders.steps import Steps, in_steps
from mtl.tasks.rules import Match
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.spans import without_overlaps
from mtl.tasks.task import Labels, annotated_layer

_RARE = -6.0
"""Log odds of a type at the start: about one span in 400 is an entity, and there are O(words²) spans."""

_CERTAIN = 1e4
"""Log odds of a span that a rule forces."""


class EntityTargets(NamedTuple):
    """Per entity its first and last word and its type's index."""

    firsts: Int[np.ndarray, " entity"]
    lasts: Int[np.ndarray, " entity"]
    types: Int[np.ndarray, " entity"]


class EntityBatch(NamedTuple):
    """`EntityTargets` of all sentences of a batch one after the other, and each entity's sentence."""

    rows: Int[Tensor, " entity"]
    spans: Int[Tensor, " entity"]
    """Where each entity is in [batch word word], without these axes."""
    types: Int[Tensor, " entity"]


def entity_targets(sentence: Sentence, layer: str, labels: Labels) -> EntityTargets:
    """The targets of an annotated sentence, of its entities without overlaps (`without_overlaps`).

    Raises `ValueError` for a sentence that is not annotated, or an entity that is not within it.
    """
    spans = annotated_layer(sentence, layer)
    if any(not 0 <= start < end <= len(sentence) for start, end, _ in spans):
        raise ValueError(f"sentence '{sentence.id}' has an entity that is not within it")
    entities = without_overlaps(spans)
    rows = [(start, end - 1, labels.index(label)) for start, end, label in entities]
    return EntityTargets(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)


def collate_entities(targets: Sequence[EntityTargets], width: int) -> EntityBatch:
    """The targets of a batch, whose longest sentence has `width` words."""
    rows, firsts, lasts, types = one_after_another(targets)
    return EntityBatch(rows, (rows * width + firsts) * width + lasts, types)


class NerDecoder(Decoder):
    """Log odds of every type against no entity, for every span.

    They are biaffine in the first and the last word (Yu et al. 2020), plus the mean of a linear score of each
    word in the span: what a single word says about its type is learned sooner than what a pair says.
    """

    narrow = True
    ruled = "spans"

    def __init__(self, hidden: int, labels: Labels, dim: int, dropout: float, threshold: float) -> None:
        super().__init__()
        self.labels = labels
        self.dropout = SharedDropout(dropout)
        self.offset = math.log(1 - threshold) - math.log(threshold)
        self.word = nn.Parameter(torch.zeros(len(labels), hidden))
        self.mlp = Mlp(hidden, 2 * dim, dropout)
        self.biaffine = Biaffine(dim, len(labels))
        assert self.biaffine.bias is not None
        nn.init.constant_(self.biaffine.bias, _RARE)

    def forward(
        self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, "batch word word label"]:
        first, last = self.mlp(words).chunk(2, 2)
        ends = self.biaffine(first, last)
        return ends + _means(at_least_float32(functional.linear(self.dropout(words), self.word)))

    def loss(
        self,
        scores: Float[Tensor, "batch word word label"],
        targets: EntityBatch,
        mask: Bool[Tensor, "batch word"],
    ) -> Float[Tensor, " batch"]:
        if not len(self.labels):
            return scores.sum((1, 2, 3))
        # The score of "no entity" is 0, so log Z = log(1 + sum of exp) = softplus(logsumexp).
        partition = functional.softplus(scores.logsumexp(3))
        losses = torch.where(_spans(mask), partition, 0.0).sum((1, 2))
        types = torch.add(targets.types.clamp(min=0), targets.spans, alpha=len(self.labels))
        # A span of a type that training never saw counts neither as an entity nor as none: its loss is 0.
        gains = torch.where(
            targets.types >= 0,
            scores.flatten().index_select(0, types),
            partition.flatten().index_select(0, targets.spans),
        )
        return losses.index_add(0, targets.rows, gains, alpha=-1)

    def structure_score(
        self,
        scores: Float[Tensor, "batch word word label"],
        targets: EntityBatch,
        mask: Bool[Tensor, "batch word"],
        label: int | None = None,
    ) -> StructureScore:
        chosen = targets.types >= 0 if label is None else targets.types == label
        rows, spans, types = (column[chosen] for column in targets)
        return sums_by_sentence(scores.flatten(0, 2)[spans, types], rows, len(mask))

    @in_steps
    def decode(
        self, scores: Float[Tensor, "batch word word label"], mask: Bool[Tensor, "batch word"]
    ) -> Steps[list[tuple[Span, ...]]]:
        entities: list[list[Span]] = [[] for _ in range(len(mask))]
        if len(self.labels):
            weights, types, lengths = yield *(scores.detach() + self.offset).max(3), mask.sum(1)
            chosen = select_spans(weights, lengths)
            kinds = types[chosen[:, 0], chosen[:, 1], chosen[:, 2] - 1].tolist()
            for (row, start, end), kind in zip(chosen.tolist(), kinds, strict=True):
                entities[row].append(Span(start, end, self.labels[kind]))
        return [tuple(spans) for spans in entities]

    def constrained(
        self,
        scores: Float[Tensor, "batch word word label"],
        mask: Bool[Tensor, "batch word"],
        matches: Sequence[Sequence[Match]],
    ) -> Float[Tensor, "batch word word label"]:
        scores = scores.clone()
        for row, of_sentence in zip(scores, matches, strict=True):
            for start, end, rule, _ in of_sentence:
                types = [self.labels.index(label) for label in rule.labels]
                if rule.force:
                    row[:end, start:] = -torch.inf  # all spans with one of these words
                    row[start, end - 1, types] = _CERTAIN
                else:
                    row[start, end - 1, types or slice(None)] = -torch.inf
        return scores

    def alternatives(
        self,
        scores: Float[Tensor, "batch word word label"],
        mask: Bool[Tensor, "batch word"],
        decoded: Sequence[tuple[Span, ...]],
        k: int,
    ) -> list[tuple[Item, ...]]:
        """Types of each predicted span, with `O` for no entity, by a softmax for each span alone."""
        places = [(row, span.start, span.end - 1) for row, spans in enumerate(decoded) for span in spans]
        index = torch.tensor(places, dtype=torch.long, device=scores.device).view(-1, 3)
        of_spans = functional.pad(scores[index[:, 0], index[:, 1], index[:, 2]], (1, 0)).softmax(1)
        best = iter(k_best(of_spans, ("O", *self.labels.names), k))
        return [
            tuple([Item("span", span.start, span.end, next(best)) for span in spans]) for spans in decoded
        ]


def _means(
    scores: Float[Tensor, "batch word label"],
) -> Float[Tensor, "batch word word label"]:
    """Means from a first to a last word; entries whose last word precedes the first have no meaning."""
    sums = functional.pad(scores.cumsum(1), (0, 0, 1, 0))
    places = torch.arange(scores.shape[1] + 1, device=scores.device)
    lengths = (places[1:] - places[:-1, None]).clamp(min=1)
    return (sums[:, None, 1:] - sums[:, :-1, None]) / lengths[:, :, None]


def _spans(mask: Bool[Tensor, "batch word"]) -> Bool[Tensor, "batch word word"]:
    """True at [first, last] if these words make a span: in order, and both within the sentence."""
    return mask[:, None, :].expand(-1, mask.shape[1], -1).triu()


def select_spans(
    weights: Float[np.ndarray, "batch word word"], lengths: Int[np.ndarray, " batch"]
) -> Int[np.ndarray, "span 3"]:
    """The set of non-overlapping spans with the greatest sum of weights in each sentence of a batch.

    `weights[b, i, j]` is the gain from taking words i to j (inclusive, i <= j) of sentence b as a span;
    spans without a gain are left out. Exact, by dynamic programming over right ends (weighted interval
    scheduling); returns rows (sentence, start, end), ends exclusive, in order of the text.
    """
    return _select(np.ascontiguousarray(weights), lengths.astype(np.int64))


@compiled
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
