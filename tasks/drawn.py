"""Drawn labels: every word type has a random label, so there is nothing to learn but the labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from mtl.tasks.ranges import Dropout, Range, Seed
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric


@dataclass(frozen=True)
class Drawn(Task):
    """A random label per word type (Hewitt & Liang 2019).

    A label is a hash of the word form. It is therefore the same in all splits, runs and corpora, and labels
    are uniform over types. The task reads only words; if other tasks are trained with it, it uses the
    sentences that are annotated for them. The labels of types that training never saw cannot be learned.
    Their words are scored, too, and 1 / `classes` of them are right by chance, so the accuracy cannot reach
    100.
    """

    kind: ClassVar[str] = "drawn"
    layers: ClassVar[tuple[str, ...]] = ()
    layer: ClassVar[str] = "words"
    drawn: ClassVar[bool] = True
    score: ClassVar[str] = "accuracy"
    scores: ClassVar[tuple[str, ...]] = ("accuracy",)
    scored_by: ClassVar[tuple[str, ...]] = ("classes", "draw")

    classes: Annotated[int, Range(2, 65_536)] = 40
    """Number of labels; English treebanks have some 45 to 50 tags."""
    draw: Seed = 1
    """Seed of the hash: another number gives other labels."""
    dropout: Dropout = 0.33
    """Share of the word vectors' features dropped in training."""

    def label(self, word: str) -> str:
        """The label of a word type."""
        digest = hashlib.sha256(f"{self.draw} {word}".encode()).digest()
        return str(int.from_bytes(digest[:8], "big") % self.classes)

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        return {"labels": len(sentence)}

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return Labels(map(str, range(self.classes)))

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.classifier import label_targets

        return label_targets(map(self.label, sentence.words), labels)

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.classifier import collate_words

        return collate_words(targets, width)

    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.classifier import WordClassifier

        return WordClassifier(hidden, labels, self.dropout)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics.accuracy import Accuracy

        return Accuracy(self.layer, self.label)

    def annotate(self, sentence: Sentence, annotation: tuple[str, ...]) -> Sentence:
        """The sentence as it is: its labels are no layer."""
        return sentence
