"""Accuracy of labels of words or of sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtl.tasks.metrics.metric import TaskMetric, share
from mtl.tasks.sentence import Sentence


class Accuracy(TaskMetric):
    """Share of right labels; `layer` is the layer with one label, or with one per word.

    With `label_of` the layer's items are not labels themselves: `label_of` gives the label of each.
    """

    labels: Tensor
    correct: Tensor

    def __init__(self, layer: str, label_of: Callable[[str], str] | None = None) -> None:
        super().__init__()
        self.layer, self.label_of = layer, label_of
        self.add_state("labels", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("correct", torch.tensor(0), dist_reduce_fx="sum")

    def update(
        self,
        predicted: Sequence[Any],
        gold: Sequence[Sentence],
        given: Sequence[Any] | None = None,
    ) -> None:
        correct, labels = self.sentence_counts(predicted, gold).sum(0).tolist()
        self.labels += labels
        self.correct += correct

    def compute(self) -> dict[str, float]:
        return {"accuracy": 100 * int(self.correct) / max(int(self.labels), 1)}

    def sentence_counts(
        self, predicted: Sequence[str | tuple[str, ...]], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 2), dtype=np.int64)
        for row, guess, sentence in zip(counts, predicted, gold, strict=True):
            layer = sentence.layer(self.layer)
            if layer is None:
                continue
            if self.label_of is not None:
                layer = tuple(map(self.label_of, layer))
            pairs = [(guess, layer)] if isinstance(layer, str) else zip(guess, layer, strict=True)
            right = [left == right for left, right in pairs]
            row[:] = sum(right), len(right)
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return share(counts)
