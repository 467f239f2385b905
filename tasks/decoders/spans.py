"""Labelled spans of words, such as entities: scores of all spans, or BIO tags with a CRF."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mtl.tasks.decoders.classifier import LinearDecoder
from mtl.tasks.decoders.crf import BioCrf, best_paths, numbered_tags, tag_names, tagged_spans
from mtl.tasks.decoders.decoder import (
    Biaffine,
    Decoder,
    Item,
    Mlp,
    SharedDropout,
    Steps,
    StructureScore,
    WordMask,
    WordVectors,
    at_least_float32,
    in_steps,
    k_best,
    label_items,
    one_after_another,
    padded,
    sums_by_sentence,
)
from mtl.tasks.recursions import compiled
from mtl.tasks.rules import Match
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.spans import spans_of, spelling_of, tags_of, without_overlaps
from mtl.tasks.task import UNKNOWN, Labels, annotated_layer

_RARE = -6.0
"""Log odds of a type at the start: about one span in 400 is an entity, and there are O(words²) spans."""

_CERTAIN = 1e4
"""Log odds of a span that a rule forces."""
_IMPOSSIBLE = -1e4
"""Score of a tag that a word cannot have (`BioCrf` computes with it)."""
_AT_ONCE = 256
"""Constrained sequences of a sentence whose sums are computed together."""


def disjoint_spans(sentence: Sentence, layer: str) -> list[Span]:
    """The spans of an annotated sentence without overlaps (`without_overlaps`).

    Raises `ValueError` for a sentence that is not annotated, or a span that is not within it.
    """
    spans = annotated_layer(sentence, layer)
    if any(not 0 <= start < end <= len(sentence) for start, end, _ in spans):
        raise ValueError(f"sentence '{sentence.id}' has an entity that is not within it")
    return without_overlaps(spans)


class EntityBatch(NamedTuple):
    """`EntityTargets` of all sentences of a batch one after the other, and each entity's sentence."""

    rows: Int[Tensor, " entity"]
    spans: Int[Tensor, " entity"]
    """Where each entity is in [batch word word], without these axes."""
    types: Int[Tensor, " entity"]


class EntityTargets(NamedTuple):
    """Per entity its first and last word and its type's index."""

    firsts: Int[np.ndarray, " entity"]
    lasts: Int[np.ndarray, " entity"]
    types: Int[np.ndarray, " entity"]

    @staticmethod
    def collate(targets: Sequence[EntityTargets], width: int) -> EntityBatch:
        rows, firsts, lasts, types = one_after_another(targets)
        return EntityBatch(rows, (rows * width + firsts) * width + lasts, types)


def entity_targets(sentence: Sentence, layer: str, labels: Labels) -> EntityTargets:
    """The targets of an annotated sentence, of its `disjoint_spans`."""
    rows = [(start, end - 1, labels.index(label)) for start, end, label in disjoint_spans(sentence, layer)]
    return EntityTargets(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)


TypeScores = Float[Tensor, "batch word word label"]
"""Log odds of every type for the span from a first to a last word."""


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

    def forward(self, words: WordVectors, mask: WordMask) -> TypeScores:
        first, last = self.mlp(words).chunk(2, 2)
        ends = self.biaffine(first, last)
        return ends + _means(at_least_float32(functional.linear(self.dropout(words), self.word)))

    def loss(self, scores: TypeScores, targets: EntityBatch, mask: WordMask) -> Float[Tensor, " batch"]:
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
        self, scores: TypeScores, targets: EntityBatch, mask: WordMask, label: int | None = None
    ) -> StructureScore:
        chosen = targets.types >= 0 if label is None else targets.types == label
        rows, spans, types = (column[chosen] for column in targets)
        return sums_by_sentence(scores.flatten(0, 2)[spans, types], rows, len(mask))

    @in_steps
    def decode(self, scores: TypeScores, mask: WordMask) -> Steps[list[tuple[Span, ...]]]:
        entities: list[list[Span]] = [[] for _ in range(len(mask))]
        if len(self.labels):
            weights, types, lengths = yield *(scores.detach() + self.offset).max(3), mask.sum(1)
            chosen = select_spans(weights, lengths)
            kinds = types[chosen[:, 0], chosen[:, 1], chosen[:, 2] - 1].tolist()
            for (row, start, end), kind in zip(chosen.tolist(), kinds, strict=True):
                entities[row].append(Span(start, end, self.labels[kind]))
        return [tuple(spans) for spans in entities]

    def constrained(
        self, scores: TypeScores, mask: WordMask, matches: Sequence[Sequence[Match]]
    ) -> TypeScores:
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
        self, scores: TypeScores, mask: WordMask, decoded: Sequence[tuple[Span, ...]], k: int
    ) -> list[tuple[Item, ...]]:
        """Types of each predicted span, with `O` for no entity, by a softmax for each span alone."""
        places = [(row, span.start, span.end - 1) for row, spans in enumerate(decoded) for span in spans]
        index = torch.tensor(places, dtype=torch.long, device=scores.device).view(-1, 3)
        of_spans = functional.pad(scores[index[:, 0], index[:, 1], index[:, 2]], (1, 0)).softmax(1)
        best = iter(k_best(of_spans, ("O", *self.labels.names), k))
        return [
            tuple([Item("span", span.start, span.end, next(best)) for span in spans]) for spans in decoded
        ]


def _means(scores: Float[Tensor, "batch word label"]) -> TypeScores:
    """Means from a first to a last word; entries whose last word precedes the first have no meaning."""
    sums = functional.pad(scores.cumsum(1), (0, 0, 1, 0))
    places = torch.arange(scores.shape[1] + 1, device=scores.device)
    lengths = (places[1:] - places[:-1, None]).clamp(min=1)
    return (sums[:, None, 1:] - sums[:, :-1, None]) / lengths[:, :, None]


def _spans(mask: WordMask) -> Bool[Tensor, "batch word word"]:
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


class TagBatch(NamedTuple):
    """`TagTargets` of a batch: at padding O, and no label."""

    tags: Int[Tensor, "batch word"]
    labels: Int[Tensor, "batch word"]


class TagTargets(NamedTuple):
    """Per word its tag as `BioCrf` numbers them, and the index of its label; `UNKNOWN` if it has none."""

    tags: Int[np.ndarray, " word"]
    labels: Int[np.ndarray, " word"]

    @staticmethod
    def collate(targets: Sequence[TagTargets], width: int) -> TagBatch:
        tags, labels = (padded(column, width) for column in zip(*targets, strict=True))
        return TagBatch(tags.clamp(min=0), labels)


def span_tags(sentence: Sentence, layer: str, labels: Labels) -> TagTargets:
    """The targets of a sentence's `disjoint_spans`; words in a span have its type as their label.

    Spans of a type that training never saw are left out.
    """
    tags = numbered_tags(disjoint_spans(sentence, layer), len(sentence), labels)
    return TagTargets(tags, np.where(tags > 0, (tags - 1) % max(len(labels), 1), UNKNOWN))


def spelt_tags(sentence: Sentence, layer: str, labels: Labels) -> TagTargets:
    """The targets of a sentence's tags, whose spans are read as `conlleval` reads them (`spans_of`)."""
    tags = annotated_layer(sentence, layer)
    numbers = numbered_tags(spans_of(tags), len(sentence), span_types(labels))
    return TagTargets(numbers, np.array([labels.index(tag) for tag in tags], dtype=np.int64))


def span_types(labels: Labels) -> Labels:
    """The types of the spans that an inventory of tags is for."""
    return Labels(sorted({tag[2:] for tag in labels.names if tag != "O"}))


TagScores = Float[Tensor, "batch word tag"]
"""The score of every tag, numbered as by `BioCrf`, at every word."""


class BioDecoder(LinearDecoder):
    """A linear score of every BIO tag at every word, and a CRF in which I-x follows only B-x and I-x."""

    def __init__(self, hidden: int, types: Labels, dropout: float) -> None:
        super().__init__(hidden, 1 + 2 * len(types), dropout)
        self.types = types
        self.crf = BioCrf(len(types))

    def forward(self, words: WordVectors, mask: WordMask) -> TagScores:
        return self.scores(words)

    def loss(self, scores: TagScores, targets: TagBatch, mask: WordMask) -> Float[Tensor, " batch"]:
        return self.crf.loss(scores, targets.tags, mask.sum(1))

    def structure_score(
        self, scores: TagScores, targets: TagBatch, mask: WordMask, label: int | None = None
    ) -> StructureScore:
        """The score of the tags against that of O throughout, as a span has no score outside of spans; of
        one label, the scores of its words' tags."""
        tags, lengths = targets.tags, mask.sum(1)
        if label is None:
            outside = self.crf.path_score(scores, torch.zeros_like(tags), lengths)
            spans = ((tags > 0) & (tags <= len(self.types))).sum(1)
            return StructureScore(self.crf.path_score(scores, tags, lengths) - outside, spans)
        chosen = targets.labels == label
        of_words = scores.gather(2, tags[:, :, None]).squeeze(2)
        return StructureScore(of_words.masked_fill(~chosen, 0.0).sum(1), chosen.sum(1))

    @in_steps
    def decode(self, scores: TagScores, mask: WordMask) -> Steps[list[Any]]:
        lengths, *chain = yield mask.sum(1), *self.crf.chain(scores)
        return [
            self.annotation(tagged_spans(tags, self.types), length)
            for tags, length in zip(best_paths(lengths, *chain), lengths.tolist(), strict=True)
        ]

    @abstractmethod
    def annotation(self, spans: tuple[Span, ...], words: int) -> Any:
        """The annotation of a sentence with these spans."""


class BioSpans(BioDecoder):
    """Spans without overlaps, such as entities."""

    ruled = "spans"

    def annotation(self, spans: tuple[Span, ...], words: int) -> tuple[Span, ...]:
        return spans

    def constrained(self, scores: TagScores, mask: WordMask, matches: Sequence[Sequence[Match]]) -> TagScores:
        scores = scores.clone()
        for row, of_sentence in enumerate(matches):
            if of_sentence:
                length = int(mask[row].sum())
                scores[row, :length] = self._ruled(scores[row, :length], of_sentence)
        return scores

    def _ruled(
        self, scores: Float[Tensor, "word tag"], matches: Sequence[Match]
    ) -> Float[Tensor, "word tag"]:
        """Scores of a sentence whose best sequence is the best of all that keep the rules.

        Forced spans are masks. That a span is none cannot be said by masks alone: without it, its first word
        does not begin such a span, or one of its words does not continue it, or it goes on behind it. These
        cases exclude each other, and each is a mask; the best sequences of cases are looked at in their order
        until one has no forbidden span.
        """
        forbidden: dict[tuple[int, int], set[str]] = {}
        for start, end, rule, _ in matches:
            if rule.force:
                kind = self.types.index(rule.labels[0])
                scores = self._with_span(scores, start, end, kind)
                scores[end : end + 1, 1 + len(self.types) + kind] = _IMPOSSIBLE
            else:
                forbidden.setdefault((start, end), set()).update(rule.labels or self.types.names)
        length = torch.tensor([len(scores)], device=scores.device)
        waiting: list[tuple[float, int, Tensor, Tensor]] = []

        def wait(case: Tensor) -> None:
            tags = torch.from_numpy(self.crf.decode(case[None], length)).to(scores.device)
            total = self.crf.path_score(case[None], tags, length).item()
            heappush(waiting, (-total, next(numbers), case, tags[0]))

        numbers = count()
        wait(scores)
        while True:
            _, _, case, tags = heappop(waiting)
            spans = tagged_spans(tags.cpu().numpy(), self.types)
            found = next((span for span in spans if span.label in forbidden.get(span[:2], ())), None)
            if found is None:
                return case
            start, end, kind = found.start, found.end, self.types.index(found.label)
            other = case.clone()
            other[start, 1 + kind] = _IMPOSSIBLE
            wait(other)
            for place in range(start + 1, end):
                other = self._with_span(case, start, place, kind)
                other[place, 1 + len(self.types) + kind] = _IMPOSSIBLE
                wait(other)
            if end < len(scores):
                wait(self._with_span(case, start, end + 1, kind))

    def _with_span(
        self, scores: Float[Tensor, "word tag"], start: int, end: int, kind: int
    ) -> Float[Tensor, "word tag"]:
        """Scores by which a span begins at a word and covers those up to `end`, and perhaps more."""
        masked = torch.full_like(scores[start:end], _IMPOSSIBLE)
        masked[0, 1 + kind] = scores[start, 1 + kind]
        inside = 1 + len(self.types) + kind
        masked[1:, inside] = scores[start + 1 : end, inside]
        return torch.cat([scores[:start], masked, scores[end:]])

    def alternatives(
        self, scores: TagScores, mask: WordMask, decoded: Sequence[tuple[Span, ...]], k: int
    ) -> list[tuple[Item, ...]]:
        """Types of each predicted span by their marginals in the CRF; `O`: these words are no span."""
        found: list[tuple[Item, ...]] = []
        for row, spans in enumerate(decoded):
            chances = self.chances(scores[row, : int(mask[row].sum())], spans)
            none = 1 - chances.sum(1, keepdim=True)
            best = k_best(torch.cat([none, chances], 1).clamp(0, 1), ("O", *self.types.names), k)
            found.append(
                tuple([Item("span", s.start, s.end, values) for s, values in zip(spans, best, strict=True)])
            )
        return found

    def chances(self, scores: Float[Tensor, "word tag"], spans: Sequence[Span]) -> Float[Tensor, "span type"]:
        """The probability of each type for exactly these words, of all tag sequences of a sentence.

        It is the share of the sequences in which the words have these tags, and no tag goes on behind them.
        """
        types = len(self.types)
        places = [(span, number) for span in spans for number in range(types)]
        parts = [scores.new_zeros(0)]
        for first in range(0, len(places), _AT_ONCE):
            some = places[first : first + _AT_ONCE]
            table = scores.repeat(1 + len(some), 1, 1)
            for row, (span, number) in zip(table[1:], some, strict=True):
                inside, begins = 1 + types + number, scores[span.start, 1 + number].clone()
                goes_on = scores[span.start + 1 : span.end, inside].clone()
                row[span.start : span.end] = _IMPOSSIBLE
                row[span.start, 1 + number] = begins
                row[span.start + 1 : span.end, inside] = goes_on
                row[span.end : span.end + 1, inside] = _IMPOSSIBLE
            lengths = torch.full((len(table),), len(scores), device=scores.device)
            whole, *of_places = self.crf.log_partition(table, lengths).split([1, len(some)])
            parts += [(part - whole).exp() for part in of_places]
        return torch.cat(parts).view(len(spans), types)


class BioTags(BioDecoder):
    """A tag per word in the spelling of the training data: BIO, or IOBES by any of its names."""

    def __init__(self, hidden: int, labels: Labels, dropout: float) -> None:
        super().__init__(hidden, span_types(labels), dropout)
        self.spelling = spelling_of(labels.names)

    def annotation(self, spans: tuple[Span, ...], words: int) -> tuple[str, ...]:
        return tags_of(spans, words, self.spelling)

    def alternatives(
        self, scores: TagScores, mask: WordMask, decoded: Sequence[tuple[str, ...]], k: int
    ) -> list[tuple[Item, ...]]:
        """BIO tags of each word by their marginals in the CRF."""
        return label_items(self.crf.marginals(scores, mask.sum(1)), mask, tag_names(self.types), k)
