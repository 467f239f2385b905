"""What tasks with one label per sentence, or per pair of sentences, have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from mtl.tasks.ranges import Dropout
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task


@dataclass(frozen=True)
class SentenceTask(Task):
    """One label for a sentence or for a pair; its layer has the task's name."""

    loss_unit: ClassVar[Literal["word", "sentence"]] = "sentence"
    sentences: ClassVar[tuple[int, ...]] = (1, 2)

    pooling: Literal["mean", "first", "attention"] = "mean"
    """The sentence's vector: the mean of its words', that of the first special token ([CLS]), or attention of
    a learned query to the words."""
    dropout: Dropout = 0.1
    """Share of the sentence vector's features dropped in training."""

    @property
    def layer(self) -> str:
        """The label, under the task's name."""
        return self.name

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        return {"labels": 1}

    scale: ClassVar[tuple[float, float] | None] = None
    """The range of its labels in files of GLUE; `None` if they are not numbers."""

    @classmethod
    def value_of(cls, text: str) -> str | float:
        """The value that a label in a text file stands for; `fault` checks it."""
        return text
