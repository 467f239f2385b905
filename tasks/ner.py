"""Named entities: a biaffine classifier over all spans, decoded without overlaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from mtl.tasks.ranges import Dropout, Range, Size
from mtl.tasks.sentence import Sentence
from mtl.tasks.spans import without_overlaps
from mtl.tasks.task import Labels, Task

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric


@dataclass(frozen=True)
class Ner(Task):
    """Named-entity recognition."""

    kind: ClassVar[str] = "spans"
    annotation: ClassVar[str] = "labelled spans"
    name: ClassVar[str] = "ner"
    layers: ClassVar[tuple[str, ...]] = ("entities",)
    layer: ClassVar[str] = "entities"
    item: ClassVar[str] = "entity"
    finds: ClassVar[bool] = True
    label_column: ClassVar[str] = "entity"
    score: ClassVar[str] = "f1"
    scores: ClassVar[tuple[str, ...]] = ("precision", "recall", "f1", "f1/")

    dim: Size = 150
    """Size of the vectors of a span's first and last word."""
    dropout: Dropout = 0.33
    """Share of features dropped in training, of those vectors and of the word vectors."""
    threshold: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 0.5
    """Probability (of a type against no entity) above which a span is an entity; the best one is half of
    the F1 that is reached (Lipton et al. 2014)."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold {self.threshold} is not a probability between 0 and 1")

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        return {"entities": len(sentence.layer(self.layer) or ())}

    def labels_of(self, value: Any) -> Iterable[str]:
        return (label for _, _, label in value)

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        annotated = (sentence.layer(self.layer) or () for sentence in sentences)
        return Labels(sorted({span.label for entities in annotated for span in entities}))

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.ner import entity_targets

        return entity_targets(sentence, self.layer, labels)

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.ner import collate_entities

        return collate_entities(targets)

    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.ner import NerDecoder

        return NerDecoder(hidden, labels, self.dim, self.dropout, self.threshold)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics.span_scores import SpanScores

        return SpanScores(self.layer)

    def dropped(self, sentence: Sentence, labels: Labels) -> int:
        entities = sentence.layer(self.layer) or ()
        return len(entities) - sum(labels.index(span.label) >= 0 for span in without_overlaps(entities))
