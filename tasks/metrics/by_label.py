"""Counts by label where the processes of a run may meet different labels."""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mtl.tasks.metrics.accuracy import Accuracy
from mtl.tasks.metrics.metric import TaskMetric, annotated, precision_recall_f1
from mtl.tasks.sentence import Sentence

Counts = tuple[Counter[str], Counter[str], Counter[str]]
"""How often each label is correct, is predicted, and is in the gold data."""


class CountsByLabel(TaskMetric, ABC):
    """A metric that counts each label.

    Ranks may meet different labels, so the counts of a label are sent with its name (`_spell`).
    """

    records: list[Tensor]

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.add_state("records", [], dist_reduce_fx="cat")

    def count(self, counts: Counts) -> None:
        """Add the counts of a batch."""
        for label in counts[1].keys() | counts[2].keys():
            record = _spell(label, [counter[label] for counter in counts])
            self.records.append(torch.tensor(record, dtype=torch.float32, device=self.device))

    def by_label(self) -> dict[str, dict[str, float]]:
        """Precision, recall and F1 in per cent of each label that occurs, sorted."""
        records = [self.records] if isinstance(self.records, Tensor) else self.records
        counts = _read([int(value) for record in records for value in record.tolist()])
        return {label: precision_recall_f1(*counts[label]) for label in sorted(counts)}


class ClassScores(CountsByLabel, Accuracy):
    """Accuracy, and the mean F1 over the classes in gold or predictions (macro-F1)."""

    def update(
        self, predicted: Sequence[Any], gold: Sequence[Sentence], given: Sequence[Any] | None = None
    ) -> None:
        Accuracy.update(self, predicted, gold)
        pairs = [(guess, true) for _, guess, true in annotated(self.layer, predicted, gold)]
        self.count(
            (
                Counter(true for guess, true in pairs if guess == true),
                Counter(guess for guess, _ in pairs),
                Counter(true for _, true in pairs),
            )
        )

    def compute(self) -> dict[str, float]:
        of_labels = [scores["f1"] for scores in self.by_label().values()]
        return Accuracy.compute(self) | {"macro_f1": sum(of_labels) / max(len(of_labels), 1)}


def _spell(label: str, counts: list[int]) -> list[int]:
    """A record of numbers: the label's length and code points, then correct, predicted and gold."""
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
