"""Spans as BIO tags with a CRF: entities, and tags that themselves encode spans."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mtl.tasks.decoders.classifier import LinearDecoder
from mtl.tasks.decoders.crf import BioCrf, best_paths, tagged_spans
from mtl.tasks.decoders.decoder import Item, StructureScore, k_best, padded
from mtl.tasks.decoders.steps import Steps, in_steps
from mtl.tasks.rules import Match
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.spans import spans_of, spelling_of, tags_of, without_overlaps
from mtl.tasks.task import UNKNOWN, Labels, annotated_layer

_IMPOSSIBLE = -1e4
"""Score of a tag that a word cannot have (`BioCrf` computes with it)."""
_AT_ONCE = 256
"""Constrained sequences of a sentence whose sums are computed together."""


class TagTargets(NamedTuple):
    """Per word its tag as `BioCrf` numbers them, and the index of its label; `UNKNOWN` if it has none."""

    tags: Int[np.ndarray, " word"]
    labels: Int[np.ndarray, " word"]


class TagBatch(NamedTuple):
    """`TagTargets` of a batch: at padding O, and no label."""

    tags: Int[Tensor, "batch word"]
    labels: Int[Tensor, "batch word"]


def span_tags(sentence: Sentence, layer: str, labels: Labels) -> TagTargets:
    """The targets of a sentence's spans, without overlaps; words in a span have its type as their label.

    Spans of a type that training never saw are left out. Raises `ValueError` for a sentence that is not
    annotated, or a span that is not within it.
    """
    spans = annotated_layer(sentence, layer)
    if any(not 0 <= start < end <= len(sentence) for start, end, _ in spans):
        raise ValueError(f"sentence '{sentence.id}' has an entity that is not within it")
    tags = _numbered(without_overlaps(spans), len(sentence), labels)
    return TagTargets(tags, np.where(tags > 0, (tags - 1) % max(len(labels), 1), UNKNOWN))


def spelt_tags(sentence: Sentence, layer: str, labels: Labels) -> TagTargets:
    """The targets of a sentence's tags, whose spans are read as `conlleval` reads them (`spans_of`)."""
    tags = annotated_layer(sentence, layer)
    numbers = _numbered(spans_of(tags), len(sentence), span_types(labels))
    return TagTargets(numbers, np.array([labels.index(tag) for tag in tags], dtype=np.int64))


def span_types(labels: Labels) -> Labels:
    """The types of the spans that an inventory of tags is for."""
    return Labels(sorted({tag[2:] for tag in labels.names if tag != "O"}))


def _numbered(spans: Sequence[Span], words: int, types: Labels) -> Int[np.ndarray, " word"]:
    tags = np.zeros(words, dtype=np.int64)
    for start, end, label in spans:
        index = types.index(label)
        if index >= 0:
            tags[start] = 1 + index
            tags[start + 1 : end] = 1 + len(types) + index
    return tags


def collate_tags(targets: Sequence[TagTargets], width: int) -> TagBatch:
    """The targets of a batch, padded to `width` words."""
    tags = padded([target.tags for target in targets], width)
    return TagBatch(tags.clamp(min=0), padded([target.labels for target in targets], width))


class BioDecoder(LinearDecoder):
    """A linear score of every BIO tag at every word, and a CRF in which I-x follows only B-x and I-x."""

    def __init__(self, hidden: int, types: Labels, dropout: float) -> None:
        super().__init__(hidden, 1 + 2 * len(types), dropout)
        self.types = types
        self.crf = BioCrf(len(types))

    def forward(
        self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, "batch word tag"]:
        return self.scores(words)

    def loss(
        self, scores: Float[Tensor, "batch word tag"], targets: TagBatch, mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, " batch"]:
        return self.crf.loss(scores, targets.tags, mask.sum(1))

    def structure_score(
        self,
        scores: Float[Tensor, "batch word tag"],
        targets: TagBatch,
        mask: Bool[Tensor, "batch word"],
        label: int | None = None,
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
    def decode(
        self, scores: Float[Tensor, "batch word tag"], mask: Bool[Tensor, "batch word"]
    ) -> Steps[list[Any]]:
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

    def constrained(
        self,
        scores: Float[Tensor, "batch word tag"],
        mask: Bool[Tensor, "batch word"],
        matches: Sequence[Sequence[Match]],
    ) -> Float[Tensor, "batch word tag"]:
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
        self,
        scores: Float[Tensor, "batch word tag"],
        mask: Bool[Tensor, "batch word"],
        decoded: Sequence[tuple[Span, ...]],
        k: int,
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
        self,
        scores: Float[Tensor, "batch word tag"],
        mask: Bool[Tensor, "batch word"],
        decoded: Sequence[tuple[str, ...]],
        k: int,
    ) -> list[tuple[Item, ...]]:
        """BIO tags of each word by their marginals in the CRF."""
        names = ("O", *(f"{place}-{name}" for place in "BI" for name in self.types.names))
        lengths = mask.sum(1)
        best = iter(k_best(self.crf.marginals(scores, lengths)[mask], names, k))
        return [
            tuple([Item("label", word, word + 1, next(best)) for word in range(length)])
            for length in lengths.tolist()
        ]
