"""Constituency parsing: a span CRF over binarised brackets, then labels for the brackets of the best tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mtl.tasks.binarise import NULL, binarise, build, constituents
from mtl.tasks.ranges import Dropout, Size
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.task import Labels, Task

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric


@dataclass(frozen=True)
class Con(Task):
    """Constituency parsing; an annotation is a sentence's constituents in pre-order, without the root."""

    kind: ClassVar[str] = "constituents"
    annotation: ClassVar[str] = "a tree of constituents"
    name: ClassVar[str] = "con"
    layers: ClassVar[tuple[str, ...]] = ("tree", "tags")  # predicted trees take their tags from there
    layer: ClassVar[str] = "tree"
    item: ClassVar[str] = "constituent"
    finds: ClassVar[bool] = True
    score: ClassVar[str] = "f1"
    scores: ClassVar[tuple[str, ...]] = ("precision", "recall", "f1", "exact")

    span_dim: Size = 128
    """Size of the vectors that brackets are scored from."""
    label_dim: Size = 128
    """Size of the vectors that the brackets' labels are scored from."""
    dropout: Dropout = 0.33
    """Dropout of these vectors."""
    decoding: Literal["viterbi", "mbr"] = "viterbi"
    """Predict the most probable bracketing, or the one with the most expected correct brackets (minimum Bayes
    risk)."""

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        tree = sentence.layer(self.layer)
        return {"constituents": 0 if tree is None else len(constituents(tree))}

    def labels_of(self, value: Any) -> Iterable[str]:
        return (label for _, _, label in constituents(value))

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        names = {NULL}
        for sentence in sentences:
            if (tree := sentence.layer(self.layer)) is not None:
                names |= {label for _, _, label in binarise(constituents(tree), len(sentence))}
        return Labels(sorted(names))

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.con import bracket_targets

        return bracket_targets(sentence, self.layer, labels)

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.con import collate_brackets

        return collate_brackets(targets)

    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.con import ConDecoder

        return ConDecoder(hidden, labels, self.span_dim, self.label_dim, self.dropout, self.decoding)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics.evalb import BracketScores

        return BracketScores(self.layer)

    def annotate(self, sentence: Sentence, annotation: tuple[Span, ...]) -> Sentence:
        tags = sentence.tags or ("XX",) * len(sentence)
        return sentence.with_layers({self.layer: build(sentence.words, tags, annotation)})
