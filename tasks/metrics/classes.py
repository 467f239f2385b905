"""Scores of sentence classification, from a confusion matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtl.tasks.metrics.metric import TaskMetric, annotated
from mtl.tasks.sentence import Sentence


def _accuracy(confusion: Float[np.ndarray, "draw gold guess"]) -> Float[np.ndarray, " draw"]:
    return np.trace(confusion, axis1=1, axis2=2) / np.maximum(confusion.sum((1, 2)), 1)


def _f1(confusion: Float[np.ndarray, "draw gold guess"]) -> Float[np.ndarray, " draw"]:
    """F1 of the last class."""
    both = confusion[:, -1].sum(1) + confusion[:, :, -1].sum(1)
    return 2 * confusion[:, -1, -1] / np.maximum(both, 1)


def _matthews(confusion: Float[np.ndarray, "draw gold guess"]) -> Float[np.ndarray, " draw"]:
    """Matthews correlation for any number of classes (Gorodkin 2004).

    If gold or predictions have only one class, it is undefined and counts as 0, as in scikit-learn.
    torchmetrics returns numbers above 0 for a model that always predicts the most frequent class.
    """
    size, right = confusion.sum((1, 2)), np.trace(confusion, axis1=1, axis2=2)
    gold, guess = confusion.sum(2), confusion.sum(1)
    of_gold, of_guess = size**2 - (gold**2).sum(1), size**2 - (guess**2).sum(1)
    scale = np.sqrt(of_gold * of_guess)
    covariance = right * size - (gold * guess).sum(1)
    return np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 0)


_SCORES: Mapping[str, Callable[[Float[np.ndarray, "draw gold guess"]], Float[np.ndarray, " draw"]]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
}
"""Scores of many confusion matrices at once, as shares; undefined ones are 0."""


class Classes(TaskMetric):
    """Scores over a fixed inventory of classes, from their confusion matrix [gold, guess].

    `layer` is the layer with the gold class, `main` the score that `score` gives.
    """

    confusion: Tensor

    def __init__(self, layer: str, inventory: Sequence[str], scores: Sequence[str], main: str) -> None:
        super().__init__()
        self.layer, self.names, self.main = layer, tuple(scores), main
        self.index = {name: index for index, name in enumerate(inventory)}
        self.add_state(
            "confusion", torch.zeros(len(inventory), len(inventory), dtype=torch.long), dist_reduce_fx="sum"
        )

    def update(
        self, predicted: Sequence[str], gold: Sequence[Sentence], given: Sequence[str] | None = None
    ) -> None:
        cells = torch.from_numpy(self.sentence_counts(predicted, gold).sum(0))
        self.confusion += cells.view(self.confusion.shape).to(self.confusion.device)

    def compute(self) -> dict[str, float]:
        confusion = self.confusion.cpu().double().numpy()[None]
        return {name: 100 * float(_SCORES[name](confusion)[0]) for name in self.names}

    def sentence_counts(
        self, predicted: Sequence[str], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        classes = len(self.index)
        counts = np.zeros((len(gold), classes * classes), dtype=np.int64)
        for number, guess, true in annotated(self.layer, predicted, gold):
            counts[number, self.index[true] * classes + self.index[guess]] = 1
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        classes = len(self.index)
        return 100 * _SCORES[self.main](counts.reshape(-1, classes, classes))
