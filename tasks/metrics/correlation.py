"""Correlation of predicted with gold numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef
from torchmetrics.utilities import dim_zero_cat

from tasks.metrics.metric import TaskMetric
from tasks.sentence import Sentence


class Correlation(TaskMetric):
    """Pearson's and Spearman's correlation; 0 where all numbers of a side are the same.

    `layer` is the layer with the gold number.
    """

    predicted: list[Tensor]
    gold: list[Tensor]

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer = layer
        self.add_state("predicted", [], dist_reduce_fx="cat")
        self.add_state("gold", [], dist_reduce_fx="cat")

    def update(
        self, predicted: Sequence[float], gold: Sequence[Sentence], given: Sequence[float] | None = None
    ) -> None:
        pairs = [
            (guess, true)
            for guess, sentence in zip(predicted, gold, strict=True)
            if (true := sentence.layer(self.layer)) is not None
        ]
        both = torch.tensor(pairs, dtype=torch.float64, device=self.device).view(-1, 2)
        self.predicted.append(both[:, 0])
        self.gold.append(both[:, 1])

    def compute(self) -> dict[str, float]:
        predicted, gold = (dim_zero_cat(state or [torch.zeros(0)]) for state in (self.predicted, self.gold))
        if len(predicted) < 2 or (predicted == predicted[0]).all() or (gold == gold[0]).all():
            return {"pearson": 0.0, "spearman": 0.0}
        # The numbers' own scale is of no account, and torchmetrics warns of small variances.
        predicted, gold = (numbers / numbers.std() for numbers in (predicted.double(), gold.double()))
        return {
            "pearson": 100 * float(pearson_corrcoef(predicted, gold)),
            "spearman": 100 * float(spearman_corrcoef(predicted, gold)),
        }
