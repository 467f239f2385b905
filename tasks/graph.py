"""Graphs: labelled arcs between words, any number per word (semantic dependencies, enhanced UD)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mtl.tasks.ranges import Dropout, Share, Size
from mtl.tasks.sentence import Arc, Graph, Sentence
from mtl.tasks.task import Labels, Task, annotated_layer

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric


@dataclass(frozen=True)
class Graphs(Task):
    """Graphs on words."""

    kind: ClassVar[str] = "graph"
    annotation: ClassVar[str] = "a graph"
    layers: ClassVar[tuple[str, ...]] = ("deps",)
    item: ClassVar[str] = "arc"
    finds: ClassVar[bool] = True
    no_label: ClassVar[str | None] = "_"
    score: ClassVar[str] = "f1"
    scores: ClassVar[tuple[str, ...]] = (
        "precision", "recall", "f1", "unlabelled_precision", "unlabelled_recall", "unlabelled_f1",
    )  # fmt: skip

    arc_dim: Size = 256
    """Size of the vectors that arcs are scored from."""
    label_dim: Size = 256
    """Size of the vectors that labels are scored from."""
    dropout: Dropout = 0.33
    """Dropout of these vectors."""
    interpolation: Share = 0.5
    """The labels' share of the loss; the arcs have the rest."""
    connected: bool = False
    """Whether all words are reached from the root, as in UD, where arcs from the root are labelled `root`."""

    @property
    def layer(self) -> str:
        """Enhanced dependencies."""
        return "deps"

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        graph = sentence.layer(self.layer)
        return {"arcs": 0 if graph is None else len(graph.arcs)}

    def labels_of(self, value: Any) -> Iterable[str]:
        return (arc.label for arc in value.arcs)

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        graphs = filter(None, (sentence.layer(self.layer) for sentence in sentences))
        return Labels(sorted({arc.label for graph in graphs for arc in graph.arcs}))

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.graph import graph_targets

        return graph_targets(representable(annotated_layer(sentence, self.layer)), labels)

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.graph import collate_graphs

        return collate_graphs(targets)

    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.graph import GraphDecoder

        return GraphDecoder(
            hidden, labels, self.arc_dim, self.label_dim, self.dropout, self.interpolation, self.connected
        )

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics.graph_scores import GraphScores

        return GraphScores(self.layer)

    def dropped(self, sentence: Sentence, labels: Labels) -> int:
        graph = sentence.layer(self.layer)
        return 0 if graph is None else len(graph.arcs) - len(representable(graph))


def representable(graph: Graph) -> list[Arc]:
    """The arcs that the decoder can predict: at most one from a head to a word, and none to itself.

    Of several, the one over the fewest empty nodes (`>` in its label) is kept.
    """
    found: dict[tuple[int, int], Arc] = {}
    for arc in sorted(graph.arcs, key=lambda arc: arc.label.count(">")):
        if arc.dependent != arc.head:
            found.setdefault((arc.dependent, arc.head), arc)
    return sorted(found.values())
