"""Scores of tasks on sentences: of classes, from a confusion matrix, and correlations of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef
from torchmetrics.utilities import dim_zero_cat

from mtl.tasks.metrics import TaskMetric, annotated_sentences
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
        for number, guess, true in annotated_sentences(self.layer, predicted, gold):
            counts[number, self.index[true] * classes + self.index[guess]] = 1
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        classes = len(self.index)
        return 100 * _SCORES[self.main](counts.reshape(-1, classes, classes))


class Correlation(TaskMetric):
    """Pearson's and Spearman's correlation times 100; 0 if all gold or all predicted numbers are equal.

    `layer` is the layer with the gold number.
    """

    predicted: list[Tensor]
    gold: list[Tensor]

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.set_dtype(torch.float64)  # also the type of what a rank without sentences contributes
        self.layer = layer
        self.add_state("predicted", [], dist_reduce_fx="cat")
        self.add_state("gold", [], dist_reduce_fx="cat")

    def update(
        self, predicted: Sequence[float], gold: Sequence[Sentence], given: Sequence[float] | None = None
    ) -> None:
        pairs = [(guess, true) for _, guess, true in annotated_sentences(self.layer, predicted, gold)]
        both = torch.tensor(pairs, dtype=torch.float64, device=self.device).view(-1, 2)
        self.predicted.append(both[:, 0])
        self.gold.append(both[:, 1])

    def compute(self) -> dict[str, float]:
        # Lists, or one tensor each where several ranks have gathered them.
        states = (self.predicted, self.gold)
        predicted, gold = (dim_zero_cat(state) if len(state) else torch.zeros(0) for state in states)
        if len(predicted) < 2 or (predicted == predicted[0]).all() or (gold == gold[0]).all():
            return {"pearson": 0.0, "spearman": 0.0}
        # Correlations ignore the scale, and torchmetrics warns of small variances: both have deviation 1.
        predicted, gold = (numbers / numbers.std() for numbers in (predicted.double(), gold.double()))
        return {
            "pearson": 100 * float(pearson_corrcoef(predicted, gold)),
            "spearman": 100 * float(spearman_corrcoef(predicted, gold)),
        }

    def sentence_counts(
        self, predicted: Sequence[float], gold: Sequence[Sentence]
    ) -> Float[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 6))
        for number, guess, true in annotated_sentences(self.layer, predicted, gold):
            counts[number] = 1, guess, true, guess * guess, true * true, guess * true
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        """Pearson's correlation from the sums of both numbers, their squares and their product."""
        size = np.maximum(counts[:, 0], 1)
        of_guess, of_gold, guesses, golds, products = (counts[:, 1:] / size[:, None]).T
        scale = np.sqrt(np.maximum(guesses - of_guess**2, 0) * np.maximum(golds - of_gold**2, 0))
        covariance = products - of_guess * of_gold
        # Rounding leaves a tiny variance where all numbers are equal: it counts as 0.
        defined = scale > 1e-12 * np.sqrt(guesses * golds)
        return 100 * np.divide(covariance, scale, out=np.zeros_like(scale), where=defined)
