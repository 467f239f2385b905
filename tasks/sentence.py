"""A sentence and its annotation layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from mtl.tasks.tree import Tree


class Span(NamedTuple):
    """A labelled stretch of words; `end` is exclusive, indices start at 0."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Arcs:
    """A dependency tree: per word its head (0 is the root, else 1-based) and its relation to that head."""

    heads: tuple[int, ...]
    relations: tuple[str, ...]


class Arc(NamedTuple):
    """One arc of a graph, between words counted from 1; a head of 0 is the root."""

    dependent: int
    head: int
    label: str


@dataclass(frozen=True, slots=True)
class Graph:
    """Labelled arcs, any number per word, in order; raises `ValueError` for an arc that is there twice."""

    arcs: tuple[Arc, ...]

    def __post_init__(self) -> None:
        arcs = sorted(self.arcs)
        for arc, following in pairwise(arcs):
            if arc == following:
                raise ValueError(f"the arc {list(arc)} occurs twice in a graph; write it once")
        object.__setattr__(self, "arcs", tuple(arcs))


@dataclass(frozen=True, slots=True)
class Frame:
    """A predicate (word index from 0), its sense (`None`: not predicted) and its arguments, V left out."""

    predicate: int
    sense: str | None
    arguments: tuple[Span, ...]


class Label(NamedTuple):
    """The label of a sentence, or of a pair, in one task: a class by its name, or a number."""

    task: str
    value: str | float


class Layer(NamedTuple):
    """A layer on words under a name of its own; its value is one that a field could have."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and their annotations. A layer of annotation that is `None` is *not annotated*, not empty.

    A pair of sentences holds the words of both, and `labels` as its only layer.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    upos: tuple[str, ...] | None = None
    entities: tuple[Span, ...] | None = None
    arcs: Arcs | None = None
    tree: Tree | None = None
    frames: tuple[Frame, ...] | None = None
    labels: tuple[Label, ...] | None = None
    """One per task that labels the sentence, sorted by the name of the task."""
    named: tuple[Layer, ...] | None = None
    """Further layers on words, sorted by their names."""
    second: int | None = None
    """The word at which the second sentence of a pair begins; `None`: one sentence."""
    id: str = ""
    text: str = ""
    """The words as they were written, with the blanks that were between them; empty: not known."""
    place: str = field(default="", compare=False, repr=False)
    """Where it was read (`FILE:LINE`), for messages; no part of its value."""
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """What its reader changed or found odd, a text each time, for counts; no part of its value."""

    def __len__(self) -> int:
        return len(self.words)

    def _repr_html_(self) -> str:
        """The sentence as notebooks show it."""
        from mtl.tasks.sentence_html import html_of

        return html_of(self)

    def layer(self, name: str) -> Any:
        """The layer of that name: a field, a label, or a named layer; `None`: not annotated.

        `feats.Case` is the feature `Case` of each word in the layer `feats` (`feature_of`), unless there is a
        layer of that name itself.
        """
        if name in FIELDS:
            return getattr(self, name)
        found = next((value for other, value in self._others if other == name), None)
        if found is not None or "." not in name:
            return found
        bundles, feature = self.layer(bundles_of(name)), name.partition(".")[2]
        of_words = isinstance(bundles, tuple) and bundles and isinstance(bundles[0], str)
        return tuple([feature_of(bundle, feature) for bundle in bundles]) if of_words else None

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that are annotated."""
        on_words = (name for name in ON_WORDS if getattr(self, name) is not None)
        return *on_words, *(name for name, _ in self._others)

    @property
    def _others(self) -> tuple[Label | Layer, ...]:
        return *(self.labels or ()), *(self.named or ())

    def with_layers(self, layers: Mapping[str, Any]) -> Sentence:
        """The sentence with these layers replaced, named as in `layer`; `None` removes a layer.

        A text or number under a name that is no field is a label of the sentence.
        """
        changed = {name: value for name, value in layers.items() if name in ON_WORDS}
        others = {name: value for name, value in layers.items() if name not in ON_WORDS}
        if others and (self.labels or self.named or any(value is not None for value in others.values())):
            by_name = sorted({**dict(self._others), **others}.items())
            present = [(name, value) for name, value in by_name if value is not None]
            labels = [Label(*item) for item in present if isinstance(item[1], str | int | float)]
            named = [Layer(*item) for item in present if not isinstance(item[1], str | int | float)]
            changed |= {"labels": tuple(labels) or None, "named": tuple(named) or None}
        return replace(self, **changed) if changed else self


def bundles_of(layer: str) -> str:
    """The layer whose bundles a layer of one feature (`feats.Case`) is taken from; else the layer itself."""
    return layer.partition(".")[0]


@lru_cache(maxsize=100_000)
def feature_of(bundle: str, name: str) -> str:
    """The value of one feature of a bundle such as `Case=Nom|Number=Sing`; `_`: it has none."""
    features = dict(part.partition("=")[::2] for part in bundle.split("|"))
    return features.get(name) or NO_FEATURES


def in_order(bundle: str) -> str:
    """A bundle of features in UD's order: that of the alphabet, without regard to case."""
    return "|".join(sorted(bundle.split("|"), key=str.lower))


def annotation_of(value: Any) -> str:
    """What a layer of this value holds, in words."""
    if isinstance(value, str):
        return "a class"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, Arcs):
        return "a dependency tree"
    if isinstance(value, Graph):
        return "a graph"
    if isinstance(value, Tree):
        return "a tree of constituents"
    first = value[0] if value else None
    if isinstance(first, Frame):
        return "predicates with arguments"
    return "a label per word" if isinstance(first, str) else "labelled spans"


LEMMAS, FEATS = "lemmas", "feats"
"""The names of the layers that are columns of CoNLL-U: a lemma per word, and a bundle of features."""
NO_FEATURES = "_"
"""The bundle of a word without features, and the value of a feature that a word does not have."""
ON_WORDS = ("upos", "tags", "entities", "arcs", "tree", "frames")
"""The fields of a sentence that are layers on its words."""
FIELDS = frozenset(field.name for field in fields(Sentence))
"""All its fields, whose names no other layer can have."""
