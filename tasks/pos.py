"""Part-of-speech tagging: a linear classifier over word vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tasks.sentence import Sentence
from tasks.task import UNKNOWN, Decoder, Labels, Task, TaskMetric

Inventory = Literal["tags", "upos"]


class TagTargets(NamedTuple):
    """Per word its tag's index."""

    tags: Int[np.ndarray, " word"]


class TagBatch(NamedTuple):
    """`TagTargets` of a batch, `UNKNOWN` at padding."""

    tags: Int[Tensor, "batch word"]


class PosDecoder(Decoder):
    """Dropout and one linear layer."""

    def __init__(self, hidden: int, labels: Labels, dropout: float) -> None:
        super().__init__()
        self.labels = labels
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden, len(labels))

    def forward(
        self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, "batch word label"]:
        scores = self.classifier(self.dropout(words))
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def loss(
        self,
        scores: Float[Tensor, "batch word label"],
        targets: TagBatch,
        mask: Bool[Tensor, "batch word"],
    ) -> Float[Tensor, " batch"]:
        losses = functional.cross_entropy(
            scores.flatten(0, 1), targets.tags.flatten(), ignore_index=UNKNOWN, reduction="none"
        )
        return losses.view(mask.shape).sum(1)

    def decode(
        self, scores: Float[Tensor, "batch word label"], mask: Bool[Tensor, "batch word"]
    ) -> list[tuple[str, ...]]:
        lengths = mask.sum(1).tolist()
        names = self.labels.names
        return [
            tuple([names[index] for index in indices[:length]])
            for indices, length in zip(scores.argmax(2).tolist(), lengths, strict=True)
        ]


class Accuracy(TaskMetric):
    """Share of words with the right tag."""

    words: Tensor
    correct: Tensor

    def __init__(self, inventory: Inventory) -> None:
        super().__init__()
        self.inventory = inventory
        self.add_state("words", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("correct", torch.tensor(0), dist_reduce_fx="sum")

    def update(
        self,
        predicted: Sequence[tuple[str, ...]],
        gold: Sequence[Sentence],
        given: Sequence[tuple[str, ...]] | None = None,
    ) -> None:
        words = correct = 0
        for guess, sentence in zip(predicted, gold, strict=True):
            tags = getattr(sentence, self.inventory)
            if tags is not None:
                words += len(tags)
                correct += sum(left == right for left, right in zip(guess, tags, strict=True))
        self.words += words
        self.correct += correct

    def compute(self) -> dict[str, float]:
        return {"accuracy": 100 * int(self.correct) / max(int(self.words), 1)}


@dataclass(frozen=True)
class Pos(Task):
    """Part-of-speech tagging."""

    name: ClassVar[str] = "pos"
    score: ClassVar[str] = "accuracy"

    inventory: Inventory = "tags"
    """Which tags: the treebank's own (`tags`, XPOS) or the universal ones (`upos`)."""
    dropout: float = 0.33
    """Share of the word vectors' features dropped in training."""

    def annotated(self, sentence: Sentence) -> bool:
        return self._tags(sentence) is not None

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return Labels(sorted({tag for sentence in sentences for tag in self._tags(sentence) or ()}))

    def targets(self, sentence: Sentence, labels: Labels) -> TagTargets:
        tags = self._tags(sentence)
        if tags is None:
            raise ValueError(f"sentence '{sentence.id}' has no {self.inventory}: ask annotated() first")
        return TagTargets(np.array([labels.index(tag) for tag in tags], dtype=np.int64))

    def collate(self, targets: Sequence[TagTargets], width: int) -> TagBatch:
        tags = np.full((len(targets), width), UNKNOWN)
        for row, target in zip(tags, targets, strict=True):
            row[: len(target.tags)] = target.tags
        return TagBatch(torch.from_numpy(tags))

    def decoder(self, hidden: int, labels: Labels) -> PosDecoder:
        return PosDecoder(hidden, labels, self.dropout)

    def metric(self) -> Accuracy:
        return Accuracy(self.inventory)

    def annotate(self, sentence: Sentence, annotation: tuple[str, ...]) -> Sentence:
        if self.inventory == "upos":
            return replace(sentence, upos=annotation)
        return replace(sentence, tags=annotation)

    def _tags(self, sentence: Sentence) -> tuple[str, ...] | None:
        return sentence.upos if self.inventory == "upos" else sentence.tags
