"""What every metric offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torchmetrics

from tasks.sentence import Sentence


class TaskMetric(torchmetrics.Metric, ABC):
    """Counts as summed states (so that ranks add up), figures in per cent."""

    full_state_update = False

    @abstractmethod
    def update(
        self, predicted: Sequence[Any], gold: Sequence[Sentence], given: Sequence[Any] | None = None
    ) -> None:
        """Add annotated sentences: decoded annotations, gold sentences, and `decode_given`'s annotations."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """Figures by name, in per cent."""


def precision_recall_f1(correct: int, predicted: int, gold: int) -> dict[str, float]:
    """In per cent; what is undefined is 0."""
    return {
        "precision": 100 * correct / max(predicted, 1),
        "recall": 100 * correct / max(gold, 1),
        "f1": 200 * correct / max(predicted + gold, 1),
    }
