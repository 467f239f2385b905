"""Figures of the classes of sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_f1_score,
    multiclass_accuracy,
    multiclass_matthews_corrcoef,
)

from tasks.metrics.metric import TaskMetric
from tasks.sentence import Sentence

_FIGURES: Mapping[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "accuracy": lambda guess, gold, classes: multiclass_accuracy(guess, gold, classes, average="micro"),
    "f1": lambda guess, gold, classes: binary_f1_score(guess == classes - 1, (gold == classes - 1).int()),
    "matthews": lambda guess, gold, classes: multiclass_matthews_corrcoef(guess, gold, classes),
}
"""By name: accuracy, F1 of the last class, and Matthews correlation; undefined ones are 0."""


class Classes(TaskMetric):
    """Figures over a fixed inventory of classes, from how often each was taken for each other.

    `layer` is the layer with the gold class.
    """

    confusion: Tensor

    def __init__(self, layer: str, inventory: Sequence[str], figures: Sequence[str]) -> None:
        super().__init__()
        self.layer, self.names = layer, tuple(figures)
        self.index = {name: index for index, name in enumerate(inventory)}
        self.add_state(
            "confusion", torch.zeros(len(inventory), len(inventory), dtype=torch.long), dist_reduce_fx="sum"
        )

    def update(
        self, predicted: Sequence[str], gold: Sequence[Sentence], given: Sequence[str] | None = None
    ) -> None:
        for guess, sentence in zip(predicted, gold, strict=True):
            true = sentence.layer(self.layer)
            if true is not None:
                self.confusion[self.index[true], self.index[guess]] += 1

    def compute(self) -> dict[str, float]:
        if not self.confusion.any():
            return dict.fromkeys(self.names, 0.0)
        classes = len(self.confusion)
        cells = torch.arange(classes * classes, device=self.confusion.device)
        cell = cells.repeat_interleave(self.confusion.flatten())
        gold, guess = cell // classes, cell % classes
        return {name: 100 * float(_FIGURES[name](guess, gold, classes)) for name in self.names}
