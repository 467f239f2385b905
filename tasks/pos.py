"""Part-of-speech tagging: a linear classifier over word vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mtl.tasks.ranges import Dropout
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric


@dataclass(frozen=True)
class Pos(Task):
    """Part-of-speech tagging."""

    name: ClassVar[str] = "pos"
    layers: ClassVar[tuple[str, ...]] = ("tags", "upos")
    loss_unit: ClassVar[Literal["word", "sentence"]] = "word"
    score: ClassVar[str] = "accuracy"
    scores: ClassVar[tuple[str, ...]] = ("accuracy",)

    inventory: Literal["tags", "upos"] = "tags"
    """The tags to learn: the treebank's own (`tags`, XPOS) or the universal tags (`upos`)."""
    dropout: Dropout = 0.33
    """Share of the word vectors' features dropped in training."""

    @property
    def layer(self) -> str:
        """The inventory's field."""
        return self.inventory

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        return {"tags": len(sentence)}

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return Labels(sorted({tag for sentence in sentences for tag in self._tags(sentence) or ()}))

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.classifier import label_targets

        tags = self._tags(sentence)
        if tags is None:
            raise ValueError(f"sentence '{sentence.id}' has no {self.inventory}: ask annotated() first")
        return label_targets(tags, labels)

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.classifier import collate_words

        return collate_words(targets, width)

    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.classifier import WordClassifier

        return WordClassifier(hidden, labels, self.dropout)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics.accuracy import Accuracy

        return Accuracy(self.layer)

    def annotate(self, sentence: Sentence, annotation: tuple[str, ...]) -> Sentence:
        if self.inventory == "upos":
            return replace(sentence, upos=annotation)
        return replace(sentence, tags=annotation)

    def _tags(self, sentence: Sentence) -> tuple[str, ...] | None:
        return sentence.upos if self.inventory == "upos" else sentence.tags
