"""What every metric offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
import torchmetrics
from jaxtyping import Float, Int
from torch import Tensor

from mtl.tasks.sentence import Sentence


class TaskMetric(torchmetrics.Metric, ABC):
    """States are summed or concatenated over ranks; scores are in per cent (`cross_entropy`: nats)."""

    full_state_update = False

    @abstractmethod
    def update(
        self, predicted: Sequence[Any], gold: Sequence[Sentence], given: Sequence[Any] | None = None
    ) -> None:
        """Add decoded annotations, gold sentences, and what `decode_given` or `references` returned."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """The scores by name (`Task.scores`); what is undefined is 0."""

    @abstractmethod
    def sentence_counts(
        self, predicted: Sequence[Any], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"] | Float[np.ndarray, "sentence count"]:
        """Counts per sentence, 0 if not annotated; `score` takes their sums over resampled sentences."""

    @abstractmethod
    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        """The main score (`Task.score`) in per cent for each draw, given its sentences' summed counts."""


class SummedCounts(TaskMetric):
    """A metric whose scores follow from the sums of its counts over all sentences."""

    columns: ClassVar[int]
    """The number of counts per sentence."""
    counts: Tensor

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer = layer
        self.add_state("counts", torch.zeros(self.columns, dtype=torch.long), dist_reduce_fx="sum")

    def update(
        self, predicted: Sequence[Any], gold: Sequence[Sentence], given: Sequence[Any] | None = None
    ) -> None:
        """See `TaskMetric`."""
        counts = torch.from_numpy(self.sentence_counts(predicted, gold).sum(0))
        self.counts += counts.to(self.counts.device)


T = TypeVar("T")


def annotated(layer: str, predicted: Sequence[T], gold: Sequence[Sentence]) -> Iterator[tuple[int, T, Any]]:
    """Of each sentence that has the layer: its number, its prediction and the layer."""
    for number, (guess, sentence) in enumerate(zip(predicted, gold, strict=True)):
        true = sentence.layer(layer)
        if true is not None:
            yield number, guess, true


def share(counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
    """The first of the counts in per cent of the second; 0 of 0 is 0."""
    return 100.0 * counts[..., 0] / np.maximum(counts[..., 1], 1)


def f1(counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
    """F1 in per cent from the first three counts: correct, predicted, gold; without any it is 0."""
    return 200.0 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)


def precision_recall_f1(correct: int, predicted: int, gold: int) -> dict[str, float]:
    """The three scores in per cent; what is undefined is 0."""
    return {
        "precision": 100 * correct / max(predicted, 1),
        "recall": 100 * correct / max(gold, 1),
        "f1": 200 * correct / max(predicted + gold, 1),
    }
