"""Linear classifiers: a label for every word, or one for the sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mtl.tasks.decoders.alternatives import Item, k_best
from mtl.tasks.decoders.collate import padded
from mtl.tasks.decoders.decoder import Decoder, StructureScore, score_of_labels
from mtl.tasks.decoders.pooling import Kind, SentencePooling
from mtl.tasks.precision import at_least_float32
from mtl.tasks.task import UNKNOWN, Labels


class LabelTargets(NamedTuple):
    """Indices of labels, one per word or one for the sentence; `UNKNOWN` if training never saw the label."""

    labels: Int[np.ndarray, " label"]


class WordLabels(NamedTuple):
    """`LabelTargets` of a batch, `UNKNOWN` at padding."""

    labels: Int[Tensor, "batch word"]


class SentenceLabels(NamedTuple):
    """`LabelTargets` of a batch whose sentences have one label each."""

    labels: Int[Tensor, " batch"]


def label_targets(names: Iterable[str], labels: Labels) -> LabelTargets:
    """The indices of the words' labels, or of the sentence's only one."""
    return LabelTargets(np.array([labels.index(name) for name in names], dtype=np.int64))


def collate_words(targets: Sequence[LabelTargets], width: int) -> WordLabels:
    """The words' labels of a batch, padded to `width` words."""
    return WordLabels(padded([target.labels for target in targets], width))


def collate_sentences(targets: Sequence[LabelTargets]) -> SentenceLabels:
    """The sentences' labels of a batch."""
    return SentenceLabels(torch.from_numpy(np.concatenate([target.labels for target in targets])))


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

    def __init__(self, hidden: int, labels: Labels, dropout: float) -> None:
        super().__init__(hidden, len(labels), dropout)
        self.labels = labels

    def forward(
        self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, "batch word label"]:
        return self.scores(words)

    def loss(
        self,
        scores: Float[Tensor, "batch word label"],
        targets: WordLabels,
        mask: Bool[Tensor, "batch word"],
    ) -> Float[Tensor, " batch"]:
        losses = functional.cross_entropy(
            scores.flatten(0, 1), targets.labels.flatten(), ignore_index=UNKNOWN, reduction="none"
        )
        return losses.view(mask.shape).sum(1)

    def structure_score(
        self,
        scores: Float[Tensor, "batch word label"],
        targets: WordLabels,
        mask: Bool[Tensor, "batch word"],
        label: int | None = None,
    ) -> StructureScore:
        return score_of_labels(scores, targets.labels, label)

    def decode(
        self, scores: Float[Tensor, "batch word label"], mask: Bool[Tensor, "batch word"]
    ) -> list[Any]:
        """Per sentence the label of each word."""
        lengths = mask.sum(1).tolist()
        names = self.labels.names
        return [
            tuple([names[index] for index in indices[:length]])
            for indices, length in zip(scores.argmax(2).tolist(), lengths, strict=True)
        ]

    def alternatives(
        self,
        scores: Float[Tensor, "batch word label"],
        mask: Bool[Tensor, "batch word"],
        decoded: Sequence[tuple[Any, ...]],
        k: int,
    ) -> list[tuple[Item, ...]]:
        best = iter(k_best(scores.softmax(2)[mask], self.labels.names, k))
        return [
            tuple([Item("label", word, word + 1, next(best)) for word in range(length)])
            for length in mask.sum(1).tolist()
        ]


class SentenceClassifier(LinearDecoder):
    """A label for the sentence, from one vector for all of its words."""

    def __init__(self, hidden: int, labels: Labels, dropout: float, pooling: Kind = "mean") -> None:
        super().__init__(hidden, len(labels), dropout)
        self.labels = labels
        self.pooling = SentencePooling(hidden, pooling)
        self.reads_first = pooling == "first"

    def forward(
        self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, "batch label"]:
        return self.scores(self.pooling(words, mask))

    def loss(
        self,
        scores: Float[Tensor, "batch label"],
        targets: SentenceLabels,
        mask: Bool[Tensor, "batch word"],
    ) -> Float[Tensor, " batch"]:
        return functional.cross_entropy(scores, targets.labels, ignore_index=UNKNOWN, reduction="none")

    def structure_score(
        self,
        scores: Float[Tensor, "batch label"],
        targets: SentenceLabels,
        mask: Bool[Tensor, "batch word"],
        label: int | None = None,
    ) -> StructureScore:
        return score_of_labels(scores[:, None], targets.labels[:, None], label)

    def decode(self, scores: Float[Tensor, "batch label"], mask: Bool[Tensor, "batch word"]) -> list[str]:
        return [self.labels[index] for index in scores.argmax(1).tolist()]

    def alternatives(
        self,
        scores: Float[Tensor, "batch label"],
        mask: Bool[Tensor, "batch word"],
        decoded: Sequence[str],
        k: int,
    ) -> list[tuple[Item, ...]]:
        words = mask.sum(1).tolist()
        if self.reads_first:
            words = [number - 1 for number in words]
        best = k_best(scores.softmax(1), self.labels.names, k)
        return [(Item("label", 0, number, values),) for number, values in zip(words, best, strict=True)]
