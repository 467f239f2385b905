"""Correlation of predicted with gold numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef
from torchmetrics.utilities import dim_zero_cat

from mtl.tasks.metrics.metric import TaskMetric, annotated
from mtl.tasks.sentence import Sentence


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
        pairs = [(guess, true) for _, guess, true in annotated(self.layer, predicted, gold)]
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
        for number, guess, true in annotated(self.layer, predicted, gold):
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
