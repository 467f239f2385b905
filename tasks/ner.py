"""Named entities: a biaffine classifier over all spans, decoded without overlaps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tasks.layers import Biaffine, Mlp
from tasks.sentence import Sentence, Span
from tasks.spans import select_spans, without_overlaps
from tasks.task import Decoder, Labels, Task, TaskMetric

_RARE = -6.0
"""Log odds of a type at the start: about one span in 400 is an entity, and there are O(words²) spans."""


class EntityTargets(NamedTuple):
    """Per entity its first and last word and its type's index."""

    firsts: Int[np.ndarray, " entity"]
    lasts: Int[np.ndarray, " entity"]
    types: Int[np.ndarray, " entity"]


class EntityBatch(NamedTuple):
    """`EntityTargets` of all sentences of a batch one after the other, and each entity's sentence."""

    rows: Int[Tensor, " entity"]
    firsts: Int[Tensor, " entity"]
    lasts: Int[Tensor, " entity"]
    types: Int[Tensor, " entity"]


class NerDecoder(Decoder):
    """Log odds of every type against no entity, for every span.

    Biaffine in the first and the last word (Yu et al. 2020), plus the mean over all words of a linear score
    of each: what a single word tells of its type is learnt sooner than what a pair of them does.
    """

    def __init__(self, hidden: int, labels: Labels, dim: int, dropout: float, threshold: float) -> None:
        super().__init__()
        self.labels = labels
        self.dropout = dropout
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
        kept = functional.dropout1d(words.mT, self.dropout, self.training).mT
        each = functional.linear(kept, self.word)
        return ends + _means(each.to(torch.promote_types(each.dtype, torch.float32)))

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
        losses = partition.masked_fill(~_spans(mask), 0.0).sum((1, 2))
        known = targets.types >= 0
        place = (targets.rows, targets.firsts, targets.lasts)
        # A span of a type that training never saw is neither this nor that: its own term is taken out.
        gains = torch.where(known, scores[(*place, targets.types.clamp(min=0))], partition[place])
        return losses.index_add(0, targets.rows, gains, alpha=-1)

    def decode(
        self, scores: Float[Tensor, "batch word word label"], mask: Bool[Tensor, "batch word"]
    ) -> list[tuple[Span, ...]]:
        entities: list[list[Span]] = [[] for _ in range(len(mask))]
        if len(self.labels):
            weights, types = (value.cpu().numpy() for value in (scores.detach() + self.offset).max(3))
            chosen = select_spans(weights, mask.sum(1).cpu().numpy())
            kinds = types[chosen[:, 0], chosen[:, 1], chosen[:, 2] - 1].tolist()
            for (row, start, end), kind in zip(chosen.tolist(), kinds, strict=True):
                entities[row].append(Span(start, end, self.labels[kind]))
        return [tuple(spans) for spans in entities]


def _means(
    scores: Float[Tensor, "batch word label"],
) -> Float[Tensor, "batch word word label"]:
    """Means from a first to a last word; what stands where the last is before the first means nothing."""
    sums = functional.pad(scores.cumsum(1), (0, 0, 1, 0))
    places = torch.arange(scores.shape[1], device=scores.device)
    lengths = (places - places[:, None]).clamp(min=0) + 1
    return (sums[:, None, 1:] - sums[:, :-1, None]) / lengths[:, :, None]


def _spans(mask: Bool[Tensor, "batch word"]) -> Bool[Tensor, "batch word word"]:
    """True where first and last word make a span: in order, and both words of the sentence."""
    return mask[:, None, :].expand(-1, mask.shape[1], -1).triu()


class SpanScores(TaskMetric):
    """Precision, recall and F1 over labelled spans, overall and F1 per type, as conlleval counts them."""

    correct: Tensor
    predicted: Tensor
    gold: Tensor
    records: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        for name in ("correct", "predicted", "gold"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")
        # Ranks may meet different types, so each count travels with its type spelt out (`_spell`).
        self.add_state("records", [], dist_reduce_fx="cat")

    def update(
        self,
        predicted: Sequence[tuple[Span, ...]],
        gold: Sequence[Sentence],
        given: Sequence[tuple[Span, ...]] | None = None,
    ) -> None:
        counts: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
        for guess, sentence in zip(predicted, gold, strict=True):
            if sentence.entities is None or not (guess or sentence.entities):
                continue
            guessed, true = set(guess), set(sentence.entities)
            for counter, spans in zip(counts, (guessed & true, guessed, true), strict=True):
                counter.update([span.label for span in spans])
        for total, counter in zip((self.correct, self.predicted, self.gold), counts, strict=True):
            total += counter.total()
        for label in counts[1].keys() | counts[2].keys():
            record = _spell(label, [counter[label] for counter in counts])
            self.records.append(torch.tensor(record, dtype=torch.float32, device=self.correct.device))

    def compute(self) -> dict[str, float]:
        correct, predicted, gold = int(self.correct), int(self.predicted), int(self.gold)
        scores = precision_recall_f1(correct, predicted, gold)
        records = [self.records] if isinstance(self.records, Tensor) else self.records
        counts = _read([int(value) for record in records for value in record.tolist()])
        return scores | {f"f1/{label}": precision_recall_f1(*counts[label])["f1"] for label in sorted(counts)}


def precision_recall_f1(correct: int, predicted: int, gold: int) -> dict[str, float]:
    """In per cent; what is undefined is 0."""
    return {
        "precision": 100 * correct / max(predicted, 1),
        "recall": 100 * correct / max(gold, 1),
        "f1": 200 * correct / max(predicted + gold, 1),
    }


def _spell(label: str, counts: list[int]) -> list[int]:
    return [len(label), *map(ord, label), *counts]


def _read(values: list[int]) -> dict[str, list[int]]:
    counts: dict[str, list[int]] = {}
    position = 0
    while position < len(values):
        end = position + 1 + values[position]
        label = "".join(map(chr, values[position + 1 : end]))
        known = counts.setdefault(label, [0, 0, 0])
        counts[label] = [old + new for old, new in zip(known, values[end : end + 3], strict=True)]
        position = end + 3
    return counts


@dataclass(frozen=True)
class Ner(Task):
    """Named-entity recognition."""

    name: ClassVar[str] = "ner"
    score: ClassVar[str] = "f1"

    dim: int = 150
    """Size of the vectors of a span's first and last word."""
    dropout: float = 0.33
    """Share of features dropped in training, of those vectors and of the word vectors."""
    threshold: float = 0.5
    """Probability (against no entity) from which a span is taken; the best for F1 is half the F1 reached."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold {self.threshold} is not a probability between 0 and 1")

    def annotated(self, sentence: Sentence) -> bool:
        return sentence.entities is not None

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return Labels(sorted({span.label for sentence in sentences for span in sentence.entities or ()}))

    def targets(self, sentence: Sentence, labels: Labels) -> EntityTargets:
        if sentence.entities is None:
            raise ValueError(f"sentence '{sentence.id}' has no entities: ask annotated() first")
        if any(not 0 <= start < end <= len(sentence) for start, end, _ in sentence.entities):
            raise ValueError(f"sentence '{sentence.id}' has an entity that is not within it")
        entities = without_overlaps(sentence.entities)
        rows = [(start, end - 1, labels.index(label)) for start, end, label in entities]
        return EntityTargets(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)

    def collate(self, targets: Sequence[EntityTargets], width: int) -> EntityBatch:
        rows = np.repeat(np.arange(len(targets)), [len(target.firsts) for target in targets])
        columns = (np.concatenate(column) for column in zip(*targets, strict=True))
        return EntityBatch(*map(torch.from_numpy, (rows, *columns)))

    def decoder(self, hidden: int, labels: Labels) -> NerDecoder:
        return NerDecoder(hidden, labels, self.dim, self.dropout, self.threshold)

    def metric(self) -> SpanScores:
        return SpanScores()

    def dropped(self, sentence: Sentence, labels: Labels) -> int:
        entities = sentence.entities or ()
        return len(entities) - sum(labels.index(span.label) >= 0 for span in without_overlaps(entities))

    def annotate(self, sentence: Sentence, annotation: tuple[Span, ...]) -> Sentence:
        return replace(sentence, entities=annotation)
