"""Tasks on words: tags, entities, trees and graphs of words, constituents, semantic roles, drawn labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from mtl.tasks.sentence import FEATS, Arc, Graph, Sentence, Span, bundles_of
from mtl.tasks.spans import (
    NULL,
    FrameLabels,
    binarise,
    build,
    constituents,
    dropped,
    is_tag,
    roles,
    senses,
    spans_of,
    without_overlaps,
    without_verb,
)
from mtl.tasks.task import Dropout, Labels, OnlyWith, Range, Seed, Share, Size, Task, annotated_layer

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics import TaskMetric


@dataclass(frozen=True)
class Tags(Task):
    """A label per word."""

    kind = "tags"
    annotation = "a label per word"
    layers: ClassVar[tuple[str, ...]] = ("tags",)
    item = "tag"
    label_column = "tag"
    of_features = True
    in_rounded_shapes = True
    score = "accuracy"
    scores: ClassVar[tuple[str, ...]] = ("accuracy",)

    dropout: Dropout = field(default=0.33, kw_only=True)
    """Share of the word vectors' features dropped in training."""

    @property
    def layer(self) -> str:
        """The treebank's own tags."""
        return "tags"

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        return {"tags": len(sentence)}

    def labels_of(self, value: tuple[str, ...]) -> Iterable[str]:
        return value

    def same_answer(self, sentence: Sentence, label: str) -> Any:
        """The label at every word."""
        return (label,) * len(sentence)

    def is_labelled(self, sentence: Sentence) -> bool:
        """Whether it has tags that are not all `_`."""
        return set(sentence.layer(self.layer)) != {"_"}

    @property
    def no_label(self) -> str | None:
        """`_`, which is a label only among features."""
        return None if bundles_of(self.layer) == FEATS else "_"

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.classifier import label_targets

        return label_targets(annotated_layer(sentence, self.layer), labels)

    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.classifier import WordClassifier

        return WordClassifier(hidden, labels, self.dropout)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics import Accuracy

        return Accuracy(self.layer)


@dataclass(frozen=True)
class OwnTags(Tags):
    """A label per word, which may encode spans."""

    scheme: Literal["none", "bio"] = "none"
    """Whether tags encode spans: `bio` for BIO (IOB1, IOB2) and IOBES, by which the sequences that mean
    nothing are excluded, and the score is F1 over spans."""

    @classmethod
    def with_settings(cls, settings: Mapping[str, Any]) -> type[Task]:
        return SpanTags if settings.get("scheme") == "bio" else cls


@dataclass(frozen=True)
class SpanTags(OwnTags):
    """Spans, written as a BIO or IOBES tag per word."""

    score = "f1"
    scores = ("precision", "recall", "f1", "f1/")

    def same_answer(self, sentence: Sentence, label: str) -> Any:
        """None: a tag at every word makes no spans to compare with."""
        return None

    @classmethod
    def fault(cls, value: Any) -> str | None:
        odd = next((tag for tag in value if not is_tag(tag)), None)
        return None if odd is None else f"'{odd}' is no tag of BIO or IOBES: use O, or B-, I-, E- or S-LABEL"

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.spans import spelt_tags

        return spelt_tags(sentence, self.layer, labels)

    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.spans import BioTags

        return BioTags(hidden, labels, self.dropout)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics import SpanScores

        return SpanScores(self.layer, spans_of)


@dataclass(frozen=True)
class Pos(Tags):
    """Part-of-speech tagging."""

    name = "pos"
    layers = ("tags", "upos")

    inventory: Literal["tags", "upos"] = "tags"
    """The tags to learn: the treebank's own (`tags`, XPOS) or the universal tags (`upos`)."""

    @property
    def layer(self) -> str:
        """The inventory's field."""
        return self.inventory


@dataclass(frozen=True)
class Ner(Task):
    """Named-entity recognition."""

    kind = "spans"
    annotation = "labelled spans"
    name = "ner"
    layers = ("entities",)
    layer = "entities"
    item = "entity"
    finds = True
    label_column = "entity"
    in_rounded_shapes = True
    score = "f1"
    scores = ("precision", "recall", "f1", "f1/")

    decoder: Literal["spans", "bio"] = "spans"
    """Score all spans (`spans`), or a BIO tag for each word, with a CRF over the sentence's tags (`bio`)."""
    dim: Annotated[Size, OnlyWith("decoder", "spans")] = 150
    """Size of the vectors of a span's first and last word."""
    dropout: Dropout = 0.33
    """Share of features dropped in training, of those vectors and of the word vectors."""
    threshold: Annotated[float, Range(0, 1, open_low=True, open_high=True), OnlyWith("decoder", "spans")] = (
        0.5
    )
    """Probability (of a type against no entity) above which a span is an entity; the best one is half of
    the F1 that is reached (Lipton et al. 2014)."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold {self.threshold} is not a probability between 0 and 1")

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        return {"entities": len(sentence.layer(self.layer) or ())}

    def labels_of(self, value: Any) -> Iterable[str]:
        return (label for _, _, label in value)

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.spans import entity_targets, span_tags

        return (span_tags if self.decoder == "bio" else entity_targets)(sentence, self.layer, labels)

    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.spans import BioSpans, NerDecoder

        if self.decoder == "bio":
            return BioSpans(hidden, labels, self.dropout)
        return NerDecoder(hidden, labels, self.dim, self.dropout, self.threshold)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics import SpanScores

        return SpanScores(self.layer)

    def dropped(self, sentence: Sentence, labels: Labels) -> int:
        entities = sentence.layer(self.layer) or ()
        return len(entities) - sum(labels.index(span.label) >= 0 for span in without_overlaps(entities))


@dataclass(frozen=True)
class Dep(Task):
    """Dependency parsing."""

    kind = "tree"
    annotation = "a dependency tree"
    name = "dep"
    layers = ("arcs",)
    layer = "arcs"
    item = "arc"
    no_label = "_"
    in_rounded_shapes = True
    score = "las"
    scores = ("uas", "las", "las_subtypes", "ucm", "lcm")
    scored_by = ("punct",)

    decoder: Literal["biaffine", "crf", "crf2o", "vi"] = "biaffine"
    """What a head depends on: on its word alone (`biaffine`), on the tree, by a CRF over trees (`crf`), also
    with scores of neighbours below one head, over projective trees (`crf2o`), or on all other words below
    the head, by variational inference (`vi`)."""
    arc_dim: Size = 256
    """Size of the vectors that arcs are scored from."""
    sibling_dim: Annotated[Size, OnlyWith("decoder", "crf2o", "vi")] = 100
    """Size of the vectors that two words below one head are scored from."""
    relation_dim: Size = 64
    """Size of the vectors that relations are scored from."""
    dropout: Dropout = 0.33
    """Dropout of these vectors."""
    punct: bool = True
    """Whether words that are punctuation count in the scores; published scores often leave them out."""
    projective: Annotated[bool, OnlyWith("decoder", "biaffine", "crf", "vi")] = False
    """Whether predicted trees, and with `crf` all trees that are summed over, have no crossing arcs."""
    tie_root: bool = False
    """Whether the root's dependent, and no other word, is predicted to have the relation `root`."""

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        arcs = sentence.layer(self.layer)
        return {"arcs": 0 if arcs is None else len(arcs.heads) - arcs.heads.count(None)}

    def loss_units(self, sentence: Sentence, targets: Any = None) -> int:
        return self.items(sentence)["arcs"] if targets is None else int((targets.heads >= 0).sum())

    def labels_of(self, value: Any) -> Iterable[str]:
        heads = zip(value.heads, value.relations, strict=True)
        return (relation for head, relation in heads if head is not None)

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.dep import arc_targets

        return arc_targets(sentence, self.layer, labels, projective=self._learns_projective_trees)

    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.dep import DepDecoder
        from mtl.tasks.decoders.tree_crf import TreeCrf, VariationalTrees

        decoders = {"biaffine": DepDecoder, "crf": TreeCrf, "crf2o": TreeCrf, "vi": VariationalTrees}
        return decoders[self.decoder](
            hidden, labels, self.arc_dim, self.relation_dim, self.dropout, tie_root=self.tie_root,
            projective=self.projective or self.decoder == "crf2o",
            sibling_dim=self.sibling_dim if self.decoder in ("crf2o", "vi") else None,
        )  # fmt: skip

    @property
    def _learns_projective_trees(self) -> bool:
        return self.decoder == "crf2o" or (self.decoder == "crf" and self.projective)

    def dropped(self, sentence: Sentence, labels: Labels) -> int:
        if not self._learns_projective_trees or not self.annotated(sentence):
            return 0
        return self.items(sentence)["arcs"] - self.loss_units(sentence, self.targets(sentence, labels))

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics import AttachmentScores

        return AttachmentScores(self.layer, self.punct)


@dataclass(frozen=True)
class Graphs(Task):
    """Graphs on words."""

    kind = "graph"
    annotation = "a graph"
    layers = ("deps",)
    layer = "deps"
    item = "arc"
    finds = True
    no_label = "_"
    in_rounded_shapes = True
    score = "f1"
    scores = (
        "precision", "recall", "f1", "unlabelled_precision", "unlabelled_recall", "unlabelled_f1",
    )  # fmt: skip

    decoder: Literal["biaffine", "vi"] = "biaffine"
    """Whether an arc depends on its two words alone (`biaffine`), or on all arcs with a common word, by
    variational inference (`vi`)."""
    arc_dim: Size = 256
    """Size of the vectors that arcs are scored from."""
    pair_dim: Annotated[Size, OnlyWith("decoder", "vi")] = 150
    """Size of the vectors that two arcs with a common word are scored from."""
    label_dim: Size = 256
    """Size of the vectors that labels are scored from."""
    dropout: Dropout = 0.33
    """Dropout of these vectors."""
    interpolation: Share = 0.5
    """The labels' share of the loss; the arcs have the rest."""
    connected: bool = False
    """Whether all words are reached from the root, as in UD, where arcs from the root are labelled `root`."""

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        graph = sentence.layer(self.layer)
        return {"arcs": 0 if graph is None else len(graph.arcs)}

    def labels_of(self, value: Any) -> Iterable[str]:
        return (arc.label for arc in value.arcs)

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.graph import graph_targets

        return graph_targets(representable_arcs(annotated_layer(sentence, self.layer)), labels)

    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.graph import GraphDecoder

        return GraphDecoder(
            hidden, labels, self.arc_dim, self.label_dim, self.dropout, self.interpolation, self.connected,
            self.pair_dim if self.decoder == "vi" else None,
        )  # fmt: skip

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics import GraphScores

        return GraphScores(self.layer)

    def dropped(self, sentence: Sentence, labels: Labels) -> int:
        graph = sentence.layer(self.layer)
        return 0 if graph is None else len(graph.arcs) - len(representable_arcs(graph))


def representable_arcs(graph: Graph) -> list[Arc]:
    """The arcs that the decoder can predict: at most one from a head to a word, and none to itself.

    Of several, the one over the fewest empty nodes (`>` in its label) is kept.
    """
    found: dict[tuple[int, int], Arc] = {}
    for arc in sorted(graph.arcs, key=lambda arc: arc.label.count(">")):
        if arc.dependent != arc.head:
            found.setdefault((arc.dependent, arc.head), arc)
    return sorted(found.values())


@dataclass(frozen=True)
class Con(Task):
    """Constituency parsing; an annotation is a sentence's constituents in pre-order, without the root."""

    kind = "constituents"
    annotation = "a tree of constituents"
    name = "con"
    layers = ("tree", "tags")  # predicted trees take their tags from there
    layer = "tree"
    item = "constituent"
    finds = True
    in_rounded_shapes = True
    score = "f1"
    scores = ("precision", "recall", "f1", "uf1", "ucm", "lcm")

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

    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.con import ConDecoder

        return ConDecoder(hidden, labels, self.span_dim, self.label_dim, self.dropout, self.decoding)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics import BracketScores

        return BracketScores(self.layer)

    def annotate(self, sentence: Sentence, annotation: tuple[Span, ...]) -> Sentence:
        tags = sentence.tags or ("XX",) * len(sentence)
        return sentence.with_layers({self.layer: build(sentence.words, tags, annotation)})


@dataclass(frozen=True)
class Srl(Task):
    """Semantic role labelling."""

    kind = "frames"
    annotation = "predicates with arguments"
    name = "srl"
    layers = ("frames",)
    layer = "frames"
    item = "frame"
    finds = True
    in_rounded_shapes = True
    score = "f1"
    scores = (
        "precision", "recall", "f1", "predicate_f1", "given_precision", "given_recall", "given_f1",
        "sense/",
    )  # fmt: skip

    decoder: Literal["bio", "spans"] = "bio"
    """Predicates by a classifier and their arguments as BIO tags (`bio`), or candidates for predicates and
    arguments by their scores, and roles of their pairs (`spans`)."""
    dim: Size = 256
    """Size of the hidden layers: of that over a predicate and a word, or (`spans`) of all."""
    reach: Annotated[int, Range(0, 65_536), OnlyWith("decoder", "bio")] = 24
    """Largest distance between predicate and word, in words, that is distinguished from larger ones."""
    dropout: Dropout = 0.33
    """Share of features dropped in training, the same at all words of a sentence (input) or frame (hidden
    layer)."""

    longest: Annotated[int, Range(1, 65_536), OnlyWith("decoder", "spans")] = 30
    """Largest number of words of an argument."""
    argument_ratio: Annotated[float, Range(0, 1_000, open_low=True), OnlyWith("decoder", "spans")] = 0.8
    """Candidates for arguments per word of the sentence."""
    predicate_ratio: Annotated[float, Range(0, 1_000, open_low=True), OnlyWith("decoder", "spans")] = 0.4
    """Candidates for predicates per word of the sentence."""
    overlaps: Annotated[bool, OnlyWith("decoder", "spans")] = False
    """Whether arguments of a predicate may overlap, or cover the predicate."""
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
        from mtl.tasks.decoders.srl_spans import ranked_targets

        if self.decoder == "spans":
            return ranked_targets(sentence, self.layer, labels, self.longest, self.overlaps)
        return frame_targets(sentence, self.layer, labels)

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        from mtl.tasks.decoders.srl import collate_frames

        if self.decoder == "spans":
            return super().collate(targets, width)
        return collate_frames(targets, width, self.reach)

    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.srl import SrlDecoder
        from mtl.tasks.decoders.srl_spans import RankingDecoder

        if self.decoder == "spans":
            return RankingDecoder(
                hidden, labels, self.dim, self.dropout, longest=self.longest, overlaps=self.overlaps,
                argument_ratio=self.argument_ratio, predicate_ratio=self.predicate_ratio,
            )  # fmt: skip
        return SrlDecoder(hidden, labels, self.dim, self.reach, self.dropout)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics import ArgumentScores

        return ArgumentScores(self.layer, self.senses)

    def dropped(self, sentence: Sentence, labels: Labels) -> int:
        if self.decoder == "spans":
            return dropped(sentence, self.layer, labels, self.longest, self.overlaps)
        return dropped(sentence, self.layer, labels)


@dataclass(frozen=True)
class Drawn(Task):
    """A random label per word type (Hewitt & Liang 2019).

    A label is a hash of the word form. It is therefore the same in all splits, runs and corpora, and labels
    are uniform over types. The task reads only words; if other tasks are trained with it, it uses the
    sentences that are annotated for them. The labels of types that training never saw cannot be learned.
    Their words are scored, too, and 1 / `classes` of them are right by chance, so the accuracy cannot reach
    100.
    """

    kind = "drawn"
    layers = ()
    layer = "words"
    drawn = True
    in_rounded_shapes = True
    score = "accuracy"
    scores = ("accuracy",)
    scored_by = ("classes", "draw")

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

    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.classifier import WordClassifier

        return WordClassifier(hidden, labels, self.dropout)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics import Accuracy

        return Accuracy(self.layer, self.label)

    def annotate(self, sentence: Sentence, annotation: tuple[str, ...]) -> Sentence:
        """The sentence as it is: its labels are no layer."""
        return sentence
