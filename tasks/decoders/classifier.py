"""Linear decoders: a label for every word, scripts for lemmas, a label or a number for the sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mtl.tasks.decoders.decoder import (
    Decoder,
    Item,
    Steps,
    StructureScore,
    WordMask,
    WordVectors,
    at_least_float32,
    at_most,
    count_values,
    in_steps,
    k_best,
    label_items,
    label_losses,
    padded,
    score_of_labels,
)
from mtl.tasks.lemmas import RANKED, RankedScripts, shortest_form, split_lemma_labels
from mtl.tasks.rules import Match, RuleKind
from mtl.tasks.task import Labels


class WordLabels(NamedTuple):
    """Indices of labels of a batch; `UNKNOWN` at padding."""

    labels: Int[Tensor, "batch word"]


class LabelTargets(NamedTuple):
    """Indices of the words' labels; `UNKNOWN` if training never saw the label."""

    labels: Int[np.ndarray, " word"]

    @staticmethod
    def collate(targets: Sequence[LabelTargets], width: int) -> WordLabels:
        return WordLabels(padded([target.labels for target in targets], width))


def label_targets(names: Iterable[str], labels: Labels) -> LabelTargets:
    """The indices of the words' labels."""
    return LabelTargets(np.array([labels.index(name) for name in names], dtype=np.int64))


class SentenceBatch(NamedTuple):
    """What a batch of sentences is labelled with: indices of labels, or numbers."""

    values: Int[Tensor, " batch"] | Float[Tensor, " batch"]


class SentenceTarget(NamedTuple):
    """The index of a sentence's label (`UNKNOWN` if training never saw it), or its number."""

    value: Int[np.ndarray, " 1"] | Float[np.ndarray, " 1"]

    @staticmethod
    def collate(targets: Sequence[SentenceTarget], width: int) -> SentenceBatch:
        return SentenceBatch(torch.from_numpy(np.concatenate([target.value for target in targets])))


def sentence_target(value: int | float) -> SentenceTarget:
    """The index of a label, or a number, as an array."""
    return SentenceTarget(np.array([value], dtype=np.int64 if isinstance(value, int) else np.float32))


LabelScores = Float[Tensor, "batch word label"]
"""The score of every label at every word."""


class LinearDecoder(Decoder):
    """Dropout and one linear layer; subclasses choose the vectors: of words, or of sentences."""

    narrow = True

    def __init__(self, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden, outputs)

    def scores(self, vectors: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch output"]:
        """Scores in float32 or wider."""
        return at_least_float32(self.classifier(self.dropout(vectors)))


class WordClassifier(LinearDecoder):
    """A label for every word."""

    ruled: RuleKind | None = "tags"

    def __init__(self, hidden: int, labels: Labels, dropout: float) -> None:
        super().__init__(hidden, len(labels), dropout)
        self.labels = labels

    def forward(self, words: WordVectors, mask: WordMask) -> LabelScores:
        return self.scores(words)

    def loss(self, scores: LabelScores, targets: WordLabels, mask: WordMask) -> Float[Tensor, " batch"]:
        return label_losses(scores, targets.labels).sum(1)

    def structure_score(
        self, scores: LabelScores, targets: WordLabels, mask: WordMask, label: int | None = None
    ) -> StructureScore:
        return score_of_labels(scores, targets.labels, label)

    @in_steps
    def decode(self, scores: LabelScores, mask: WordMask) -> Steps[list[Any]]:
        """Per sentence the label of each word."""
        best, lengths = yield scores.argmax(2), mask.sum(1)
        names = self.labels.names
        return [
            tuple([names[index] for index in indices[:length]])
            for indices, length in zip(best.tolist(), lengths.tolist(), strict=True)
        ]

    def constrained(
        self, scores: LabelScores, mask: WordMask, matches: Sequence[Sequence[Match]]
    ) -> LabelScores:
        return scores.masked_fill(~allowed_labels(scores, matches, self.labels), -torch.inf)

    def alternatives(
        self, scores: LabelScores, mask: WordMask, decoded: Sequence[tuple[Any, ...]], k: int
    ) -> list[tuple[Item, ...]]:
        return label_items(scores.softmax(2), mask, self.labels.names, k)


def allowed_labels(
    scores: LabelScores, matches: Sequence[Sequence[Match]], labels: Labels
) -> Bool[Tensor, "batch word label"]:
    """The labels that rules leave to each word; all of them where they leave none.

    A rule that forces labels names one for each of its words, or several for its only word.
    """
    allowed = np.ones(tuple(scores.shape), dtype=bool)
    for row, of_sentence in zip(allowed, matches, strict=True):
        for start, end, rule, _ in of_sentence:
            each = [[label] for label in rule.labels] if end - start > 1 and rule.force else [rule.labels]
            for word, named in zip(range(start, end), each * (1 if rule.force else end - start), strict=True):
                chosen = np.isin(np.arange(len(labels)), [labels.index(label) for label in named])
                row[word] &= (chosen == rule.force) | (not named)
    allowed |= ~allowed.any(2, keepdims=True)
    return torch.from_numpy(allowed).to(scores.device)


class SentenceClassifier(LinearDecoder):
    """A label for the sentence, from one vector for all of its words."""

    def __init__(self, hidden: int, labels: Labels, dropout: float, pooling: Kind = "mean") -> None:
        super().__init__(hidden, len(labels), dropout)
        self.labels = labels
        self.pooling = SentencePooling(hidden, pooling)
        self.reads_first = pooling == "first"

    def forward(self, words: WordVectors, mask: WordMask) -> Float[Tensor, "batch label"]:
        return self.scores(self.pooling(words, mask))

    def loss(
        self, scores: Float[Tensor, "batch label"], targets: SentenceBatch, mask: WordMask
    ) -> Float[Tensor, " batch"]:
        return label_losses(scores, targets.values)

    def structure_score(
        self,
        scores: Float[Tensor, "batch label"],
        targets: SentenceBatch,
        mask: WordMask,
        label: int | None = None,
    ) -> StructureScore:
        return score_of_labels(scores[:, None], targets.values[:, None], label)

    @in_steps
    def decode(self, scores: Float[Tensor, "batch label"], mask: WordMask) -> Steps[list[str]]:
        [best] = yield (scores.argmax(1),)
        return [self.labels[index] for index in best.tolist()]

    def alternatives(
        self, scores: Float[Tensor, "batch label"], mask: WordMask, decoded: Sequence[str], k: int
    ) -> list[tuple[Item, ...]]:
        words = mask.sum(1).tolist()
        if self.reads_first:
            words = [number - 1 for number in words]
        best = k_best(scores.softmax(1), self.labels.names, k)
        return [(Item("label", 0, number, values),) for number, values in zip(words, best, strict=True)]


class SentenceRegressor(LinearDecoder):
    """A number for the sentence, from one vector for all of its words; its loss is the squared error."""

    def __init__(self, hidden: int, dropout: float, pooling: Kind = "mean") -> None:
        super().__init__(hidden, 1, dropout)
        self.pooling = SentencePooling(hidden, pooling)
        self.reads_first = pooling == "first"

    def forward(self, words: WordVectors, mask: WordMask) -> Float[Tensor, " batch"]:
        return self.scores(self.pooling(words, mask)).squeeze(1)

    def loss(
        self, scores: Float[Tensor, " batch"], targets: SentenceBatch, mask: WordMask
    ) -> Float[Tensor, " batch"]:
        return functional.mse_loss(scores, targets.values.to(scores.dtype), reduction="none")

    def structure_score(
        self,
        scores: Float[Tensor, " batch"],
        targets: SentenceBatch,
        mask: WordMask,
        label: int | None = None,
    ) -> StructureScore:
        """The number itself, which has no labels."""
        return StructureScore(scores, torch.ones_like(scores, dtype=torch.long))

    @in_steps
    def decode(self, scores: Float[Tensor, " batch"], mask: WordMask) -> Steps[list[float]]:
        [numbers] = yield (scores,)
        found: list[float] = numbers.tolist()
        return found


class LemmaDecoder(WordClassifier):
    """A script for every word.

    The decoder does not know the forms. But a script applies only to forms that are long enough, and a form
    that occurs in training gets one of its lemmas there. Therefore an annotation has the lexicon and, for
    each word, several scripts in the order of their scores.
    """

    fits: Tensor
    ruled = None

    def __init__(self, hidden: int, labels: Labels, dropout: float) -> None:
        scripts, self.lexicon = split_lemma_labels(labels)
        super().__init__(hidden, scripts, dropout)
        shortest = [shortest_form(name) for name in scripts.names]
        lengths = torch.tensor(sorted({*shortest}, reverse=True))
        self.register_buffer("fits", torch.tensor(shortest) <= lengths[:, None], persistent=False)
        """Which scripts apply to forms of each length that makes a difference, the longest first."""

    @in_steps
    def decode(self, scores: LabelScores, mask: WordMask) -> Steps[list[RankedScripts]]:
        """Per word the best scripts of all, then the best script for shorter forms, and so on."""
        best = scores.topk(min(RANKED, len(self.labels)), 2).indices
        if len(self.fits) > 1:
            fitting = [scores.masked_fill(~fits, -torch.inf).argmax(2) for fits in self.fits[1:]]
            best = torch.cat([best, torch.stack(fitting, 2)], 2)
        ranked, lengths = yield best, mask.sum(1)
        names = self.labels.names
        return [
            RankedScripts(
                tuple([tuple([names[index] for index in dict.fromkeys(word)]) for word in words[:length]]),
                self.lexicon,
            )
            for words, length in zip(ranked.tolist(), lengths.tolist(), strict=True)
        ]

    def alternatives(
        self, scores: LabelScores, mask: WordMask, decoded: Sequence[tuple[Any, ...]], k: int
    ) -> list[tuple[Item, ...]]:
        """All scripts of each word, whatever `k` is: which of them apply depends on its form."""
        count_values(int(mask.sum()), min(k, len(self.labels)))
        with at_most(None):  # at most k of them are kept
            return super().alternatives(scores, mask, decoded, len(self.labels))


Kind = Literal["mean", "first", "attention"]


class SentencePooling(nn.Module):
    """The mean of the word vectors, the first vector ([CLS], where it is put first), or attention over words.

    Attention has one learned query, zero at first, so that it starts as the mean.
    """

    def __init__(self, hidden: int, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.query = nn.Parameter(torch.zeros(hidden)) if kind == "attention" else None

    def forward(self, words: WordVectors, mask: WordMask) -> Float[Tensor, "batch hidden"]:
        if self.kind == "first":
            return words[:, 0]
        words = words.masked_fill(~mask[:, :, None], 0.0)
        if self.query is None:
            return words.sum(1) / mask.sum(1, keepdim=True)
        weights = (words @ self.query).masked_fill(~mask, -torch.inf).softmax(1)
        return torch.einsum("bw,bwh->bh", weights, words)
