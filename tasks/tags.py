"""A label per word: a linear classifier over word vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mtl.tasks.ranges import Dropout
from mtl.tasks.sentence import FEATS, Sentence, bundles_of
from mtl.tasks.task import Labels, Task, annotated_layer

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric


@dataclass(frozen=True)
class Tags(Task):
    """A label per word."""

    kind: ClassVar[str] = "tags"
    annotation: ClassVar[str] = "a label per word"
    layers: ClassVar[tuple[str, ...]] = ("tags",)
    item: ClassVar[str] = "tag"
    label_column: ClassVar[str] = "tag"
    of_features: ClassVar[bool] = True
    score: ClassVar[str] = "accuracy"
    scores: ClassVar[tuple[str, ...]] = ("accuracy",)

    dropout: Dropout = field(default=0.33, kw_only=True)
    """Share of the word vectors' features dropped in training."""

    @property
    def layer(self) -> str:
        """The treebank's own tags."""
        return "tags"

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        return {"tags": len(sentence)}

    def labels_of(self, value: Any) -> Iterable[str]:
        labels: tuple[str, ...] = value
        return labels

    def is_labelled(self, sentence: Sentence) -> bool:
        """Whether it has tags that are not all `_`."""
        return set(sentence.layer(self.layer)) != {"_"}

    @property
    def no_label(self) -> str | None:
        """`_`, which is a label only among features."""
        return None if bundles_of(self.layer) == FEATS else "_"

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return Labels(sorted({tag for sentence in sentences for tag in sentence.layer(self.layer) or ()}))

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.classifier import label_targets

        return label_targets(annotated_layer(sentence, self.layer), labels)

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.classifier import collate_words

        return collate_words(targets, width)

    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.classifier import WordClassifier

        return WordClassifier(hidden, labels, self.dropout)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics.accuracy import Accuracy

        return Accuracy(self.layer)
