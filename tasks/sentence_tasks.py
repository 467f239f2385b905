"""Tasks with one label or number per sentence, or per pair of sentences; those of GLUE (Wang et al. 2019).

A new task on sentences is such a class, too, listed in `OF_SENTENCES` of `tasks/catalogue.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mtl.tasks.in_words import as_json
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Dropout, Labels, Task, annotated_layer

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics import TaskMetric


@dataclass(frozen=True)
class SentenceTask(Task):
    """One label for a sentence or for a pair; its layer has the task's name."""

    in_rounded_shapes = True
    loss_unit = "sentence"
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


@dataclass(frozen=True)
class Classify(SentenceTask):
    """One class for a sentence or a pair, from a user's own files."""

    kind = "class"
    annotation = "a text"
    name = "classify"
    layers: ClassVar[tuple[str, ...]] = ("classify",)
    score = "accuracy"
    scores: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1")
    inventory: ClassVar[tuple[str, ...]] = ()
    """All classes, the positive one last; empty: those of the training sentences."""

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return Labels(self.inventory or sorted({self._value(s) for s in sentences if self.annotated(s)}))

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.classifier import sentence_target

        return sentence_target(labels.index(self._value(sentence)))

    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.classifier import SentenceClassifier

        return SentenceClassifier(hidden, labels, self.dropout, self.pooling)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics import Classes, ClassScores

        if not self.inventory:
            return ClassScores(self.layer)
        return Classes(self.layer, self.inventory, self.scores, self.score)

    def labels_of(self, value: Any) -> Iterable[str]:
        return (value,)

    def same_answer(self, sentence: Sentence, label: str) -> Any:
        """The class itself."""
        return label

    @classmethod
    def fault(cls, value: Any) -> str | None:
        """Why a value cannot be a label of this task; `None` if it can."""
        if not isinstance(value, str):
            return f"{as_json(value)} is no name of a class; write it in quotes"
        if value.split() != [value]:
            return f"the label {value!r} holds white space or is empty; write it as one word"
        if cls.inventory and value not in cls.inventory:
            return f"{value!r} is none of {', '.join(cls.inventory)}"
        return None

    def _value(self, sentence: Sentence) -> str:
        value = sentence.layer(self.layer)
        if not isinstance(value, str):
            raise ValueError(f"sentence '{sentence.id}' has no class of {self.name}: ask annotated() first")
        return value


LARGEST = 1e15
"""The largest number accepted: float32 has room for its square, and for the sum of many such squares."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Regress(SentenceTask):
    """One number for a sentence or a pair, from a user's own files."""

    kind = "number"
    annotation = "a number"
    name = "regress"
    layers: ClassVar[tuple[str, ...]] = ("regress",)
    score = "pearson"
    scores: ClassVar[tuple[str, ...]] = ("pearson", "spearman")
    scale: ClassVar[tuple[float, float] | None] = (-LARGEST, LARGEST)
    """The lowest and the highest gold number; predictions may lie outside."""

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return Labels(())

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.classifier import sentence_target

        return sentence_target(float(annotated_layer(sentence, self.layer)))

    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.classifier import SentenceRegressor

        return SentenceRegressor(hidden, self.dropout, self.pooling)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics import Correlation

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


class Cola(Classify):
    """Whether a sentence is acceptable (CoLA; 1: it is)."""

    name = "cola"
    layers = ("cola",)
    sentences = (1,)
    score = "matthews"
    scores = ("matthews", "accuracy")
    inventory = ("0", "1")


class Sst2(Classify):
    """Whether a sentence of a film review is positive (SST-2; 1: it is)."""

    name = "sst2"
    layers = ("sst2",)
    sentences = (1,)
    scores = ("accuracy",)
    inventory = ("0", "1")


class Mrpc(Classify):
    """Whether two sentences say the same thing (MRPC; 1: they do)."""

    name = "mrpc"
    layers = ("mrpc",)
    sentences = (2,)
    scores = ("accuracy", "f1")
    inventory = ("0", "1")


class Rte(Classify):
    """Whether the first sentence entails the second (RTE)."""

    name = "rte"
    layers = ("rte",)
    sentences = (2,)
    scores = ("accuracy",)
    inventory = ("not_entailment", "entailment")


class Qnli(Classify):
    """Whether a sentence contains the answer to a question (QNLI)."""

    name = "qnli"
    layers = ("qnli",)
    sentences = (2,)
    scores = ("accuracy",)
    inventory = ("not_entailment", "entailment")


class Mnli(Classify):
    """Whether the first sentence entails the second, contradicts it, or neither (MNLI)."""

    name = "mnli"
    layers = ("mnli",)
    sentences = (2,)
    scores = ("accuracy",)
    inventory = ("contradiction", "neutral", "entailment")


class Stsb(Regress):
    """How similar two sentences are, from 0 to 5 (STS-B)."""

    name = "stsb"
    layers = ("stsb",)
    sentences = (2,)
    scale = (0, 5)
