"""Labelled spans scored as the conlleval program does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtl.tasks.metrics.metric import TaskMetric, f1, precision_recall_f1
from mtl.tasks.sentence import Sentence, Span


class SpanScores(TaskMetric):
    """Precision, recall and F1 over labelled spans, overall and F1 per type, as conlleval counts them."""

    correct: Tensor
    predicted: Tensor
    gold: Tensor
    records: list[Tensor]

    def __init__(self, layer: str = "entities") -> None:
        super().__init__()
        self.layer = layer
        for name in ("correct", "predicted", "gold"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")
        # Ranks may meet different types, so the counts of a type are sent with its name (`_spell`).
        self.add_state("records", [], dist_reduce_fx="cat")

    def update(
        self,
        predicted: Sequence[tuple[Span, ...]],
        gold: Sequence[Sentence],
        given: Sequence[tuple[Span, ...]] | None = None,
    ) -> None:
        counts: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
        for guess, sentence in zip(predicted, gold, strict=True):
            of_gold = sentence.layer(self.layer)
            if of_gold is None or not (guess or of_gold):
                continue
            guessed, true = set(guess), set(of_gold)
            for counter, spans in zip(counts, (guessed & true, guessed, true), strict=True):
                counter.update([span.label for span in spans])
        for total, counter in zip((self.correct, self.predicted, self.gold), counts, strict=True):
            total += counter.total()
        for label in counts[1].keys() | counts[2].keys():
            record = _spell(label, [counter[label] for counter in counts])
            self.records.append(torch.tensor(record, dtype=torch.float32, device=self.correct.device))

    def compute(self) -> dict[str, float]:
        correct, predicted, gold = int(self.correct), int(self.predicted), int(self.gold)
        scores = precision_recall_f1(correct, predicted, gold)
        records = [self.records] if isinstance(self.records, Tensor) else self.records
        counts = _read([int(value) for record in records for value in record.tolist()])
        return scores | {f"f1/{label}": precision_recall_f1(*counts[label])["f1"] for label in sorted(counts)}

    def sentence_counts(
        self, predicted: Sequence[tuple[Span, ...]], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 3), dtype=np.int64)
        for row, spans, sentence in zip(counts, predicted, gold, strict=True):
            if (of_gold := sentence.layer(self.layer)) is not None:
                guessed, true = set(spans), set(of_gold)
                row[:] = len(guessed & true), len(guessed), len(true)
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return f1(counts)


def _spell(label: str, counts: list[int]) -> list[int]:
    """A record of numbers: the label's length and code points, then correct, predicted and gold spans."""
    return [len(label), *map(ord, label), *counts]


def _read(values: list[int]) -> dict[str, list[int]]:
    """The counts by label from records one after the other, summed over those of the same label."""
    counts: dict[str, list[int]] = {}
    position = 0
    while position < len(values):
        end = position + 1 + values[position]
        label = "".join(map(chr, values[position + 1 : end]))
        known = counts.setdefault(label, [0, 0, 0])
        counts[label] = [old + new for old, new in zip(known, values[end : end + 3], strict=True)]
        position = end + 3
    return counts
