"""Classification of sentences and of pairs of sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mtl.tasks.in_words import as_json
from mtl.tasks.sentence import Sentence
from mtl.tasks.sentence_task import SentenceTask
from mtl.tasks.task import Labels

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric


@dataclass(frozen=True)
class Classify(SentenceTask):
    """One class for a sentence or a pair, from a user's own files."""

    kind: ClassVar[str] = "class"
    annotation: ClassVar[str] = "a text"
    name: ClassVar[str] = "classify"
    layers: ClassVar[tuple[str, ...]] = ("classify",)
    score: ClassVar[str] = "accuracy"
    scores: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1")
    inventory: ClassVar[tuple[str, ...]] = ()
    """All classes, the positive one last; empty: those of the training sentences."""

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return Labels(self.inventory or sorted({self._value(s) for s in sentences if self.annotated(s)}))

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.classifier import label_targets

        return label_targets([self._value(sentence)], labels)

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.classifier import collate_sentences

        return collate_sentences(targets)

    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.classifier import SentenceClassifier

        return SentenceClassifier(hidden, labels, self.dropout, self.pooling)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics.by_label import ClassScores
        from mtl.tasks.metrics.classes import Classes

        if not self.inventory:
            return ClassScores(self.layer)
        return Classes(self.layer, self.inventory, self.scores, self.score)

    def labels_of(self, value: Any) -> Iterable[str]:
        return (value,)

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
