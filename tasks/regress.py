"""Regression: a number for a sentence or for a pair of sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mtl.tasks.in_words import as_json
from mtl.tasks.sentence import Sentence
from mtl.tasks.sentence_task import SentenceTask
from mtl.tasks.task import Labels, annotated_layer

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric

LARGEST = 1e15
"""The largest number accepted: float32 has room for its square, and for the sum of many such squares."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Regress(SentenceTask):
    """One number for a sentence or a pair, from a user's own files."""

    kind: ClassVar[str] = "number"
    annotation: ClassVar[str] = "a number"
    name: ClassVar[str] = "regress"
    layers: ClassVar[tuple[str, ...]] = ("regress",)
    score: ClassVar[str] = "pearson"
    scores: ClassVar[tuple[str, ...]] = ("pearson", "spearman")
    scale: ClassVar[tuple[float, float] | None] = (-LARGEST, LARGEST)
    """The lowest and the highest gold number; predictions may lie outside."""

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return Labels(())

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.regressor import number_targets

        return number_targets(float(annotated_layer(sentence, self.layer)))

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.regressor import collate_numbers

        return collate_numbers(targets)

    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.regressor import SentenceRegressor

        return SentenceRegressor(hidden, self.dropout, self.pooling)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics.correlation import Correlation

        return Correlation(self.layer)

    @classmethod
    def value_of(cls, text: str) -> str | float:
        """The number that a text spells; the text itself if it spells none."""
        number = number_of(text)
        return text if number is None else number

    @classmethod
    def fault(cls, value: Any) -> str | None:
        """Why a value cannot be a label of this task; `None` if it can."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not abs(value) <= LARGEST:  # this is also true of NaN
            return f"{as_json(value)} is no number from {-LARGEST:g} to {LARGEST:g}"
        return None


def number_of(text: str) -> float | None:
    """The number that a text spells in ASCII digits; `None` also for `1_0` and `nan`, which Python reads."""
    return float(text) if _NUMBER.fullmatch(text) else None
