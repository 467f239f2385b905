"""Labelled spans, scored as by the program conlleval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtl.tasks.metrics.by_label import CountsByLabel
from mtl.tasks.metrics.metric import annotated, f1, precision_recall_f1
from mtl.tasks.sentence import Sentence, Span


class SpanScores(CountsByLabel):
    """Precision, recall and F1 over labelled spans, overall and F1 per type, as conlleval counts them."""

    correct: Tensor
    predicted: Tensor
    gold: Tensor

    def __init__(self, layer: str = "entities") -> None:
        super().__init__()
        self.layer = layer
        for name in ("correct", "predicted", "gold"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(
        self,
        predicted: Sequence[tuple[Span, ...]],
        gold: Sequence[Sentence],
        given: Sequence[tuple[Span, ...]] | None = None,
    ) -> None:
        counts: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
        for _, guess, of_gold in annotated(self.layer, predicted, gold):
            guessed, true = set(guess), set(of_gold)
            for counter, spans in zip(counts, (guessed & true, guessed, true), strict=True):
                counter.update([span.label for span in spans])
        for total, counter in zip((self.correct, self.predicted, self.gold), counts, strict=True):
            total += counter.total()
        self.count(counts)

    def compute(self) -> dict[str, float]:
        correct, predicted, gold = int(self.correct), int(self.predicted), int(self.gold)
        scores = precision_recall_f1(correct, predicted, gold)
        return scores | {f"f1/{label}": of_label["f1"] for label, of_label in self.by_label().items()}

    def sentence_counts(
        self, predicted: Sequence[tuple[Span, ...]], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 3), dtype=np.int64)
        for number, spans, of_gold in annotated(self.layer, predicted, gold):
            guessed, true = set(spans), set(of_gold)
            counts[number] = len(guessed & true), len(guessed), len(true)
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return f1(counts)
