"""Semantic roles, end to end: which words are predicates, and the arguments of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from mtl.tasks.frames import FrameLabels, dropped, roles, senses, without_verb
from mtl.tasks.ranges import Dropout, Range, Size
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric


@dataclass(frozen=True)
class Srl(Task):
    """Semantic role labelling."""

    kind: ClassVar[str] = "frames"
    annotation: ClassVar[str] = "predicates with arguments"
    name: ClassVar[str] = "srl"
    layers: ClassVar[tuple[str, ...]] = ("frames",)
    layer: ClassVar[str] = "frames"
    item: ClassVar[str] = "frame"
    finds: ClassVar[bool] = True
    score: ClassVar[str] = "f1"
    scores: ClassVar[tuple[str, ...]] = (
        "precision", "recall", "f1", "predicate_f1", "given_precision", "given_recall", "given_f1",
        "sense/",
    )  # fmt: skip

    dim: Size = 256
    """Size of the hidden layer over a predicate and a word."""
    reach: Annotated[int, Range(0, 65_536)] = 24
    """Largest distance between predicate and word, in words, that is distinguished from larger ones."""
    dropout: Dropout = 0.33
    """Share of features dropped in training, the same at all words of a sentence (input) or frame (hidden
    layer)."""

    senses: bool = False
    """Whether the senses of predicates are learned, too: each sense in the training data is a label."""

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        frames = sentence.layer(self.layer) or ()
        return {"frames": len(frames), "arguments": sum(len(frame.arguments) for frame in frames)}

    def labels_of(self, value: Any) -> Iterable[str]:
        return (label for frame in value for _, _, label in without_verb(frame.arguments))

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        named: set[str] = set()
        numbered: set[str] = set()
        for sentence in sentences:
            frames = sentence.layer(self.layer) or ()
            named.update(roles(frames))
            numbered.update(senses(frames) if self.senses else ())
        return FrameLabels(Labels(sorted(named)), Labels(sorted(numbered))).joined()

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.srl import frame_targets

        return frame_targets(sentence, self.layer, labels)

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.srl import collate_frames

        return collate_frames(targets, width)

    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.srl import SrlDecoder

        return SrlDecoder(hidden, labels, self.dim, self.reach, self.dropout)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics.arguments import ArgumentScores

        return ArgumentScores(self.layer, self.senses)

    def dropped(self, sentence: Sentence, labels: Labels) -> int:
        return dropped(sentence, self.layer, labels)
