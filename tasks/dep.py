"""Dependency parsing: biaffine heads and relations, decoded as a single-root spanning tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mtl.tasks.ranges import Dropout, Size
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric


@dataclass(frozen=True)
class Dep(Task):
    """Dependency parsing."""

    kind: ClassVar[str] = "tree"
    annotation: ClassVar[str] = "a dependency tree"
    name: ClassVar[str] = "dep"
    layers: ClassVar[tuple[str, ...]] = ("arcs",)
    layer: ClassVar[str] = "arcs"
    item: ClassVar[str] = "arc"
    no_label: ClassVar[str | None] = "_"
    score: ClassVar[str] = "las"
    scores: ClassVar[tuple[str, ...]] = ("uas", "las", "las_subtypes")
    scored_by: ClassVar[tuple[str, ...]] = ("punct",)

    arc_dim: Size = 256
    """Size of the vectors that arcs are scored from."""
    relation_dim: Size = 64
    """Size of the vectors that relations are scored from."""
    dropout: Dropout = 0.33
    """Dropout of these vectors."""
    punct: bool = True
    """Whether words that are punctuation count in the scores; published scores often leave them out."""
    projective: bool = False
    """Whether predicted trees have no crossing arcs."""
    tie_root: bool = False
    """Whether the root's dependent, and no other word, is predicted to have the relation `root`."""

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        arcs = sentence.layer(self.layer)
        return {"arcs": 0 if arcs is None else len(arcs.heads)}

    def labels_of(self, value: Any) -> Iterable[str]:
        relations: tuple[str, ...] = value.relations
        return relations

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        trees = filter(None, (sentence.layer(self.layer) for sentence in sentences))
        return Labels(sorted({name for arcs in trees for name in arcs.relations}))

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.dep import arc_targets

        return arc_targets(sentence, self.layer, labels)

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.dep import collate_arcs

        return collate_arcs(targets, width)

    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.dep import DepDecoder

        return DepDecoder(
            hidden, labels, self.arc_dim, self.relation_dim, self.dropout,
            projective=self.projective, tie_root=self.tie_root,
        )  # fmt: skip

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics.attachment import AttachmentScores

        return AttachmentScores(self.layer, self.punct)
