"""A sentence and its annotation layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

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
    """A predicate (word index from 0), its sense (`None`: without one) and its arguments, without V."""

    predicate: int
    sense: str | None
    arguments: tuple[Span, ...]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Sentence:
    """Words and their layers of annotation, each under a name.

    `Sentence(words, tags=…, intent=…)`: every keyword that is not a field is a layer, and so is every entry
    of the mapping `layers`. A layer that is `None` is *not annotated*, which differs from empty, and is left
    out. The value of a layer says what it holds (`annotation_of`): a text per word, spans, `Arcs`, a `Graph`,
    a `Tree`, frames, or the label of the whole sentence, a text or a number. A pair of sentences holds the
    words of both, and labels only.
    """

    words: tuple[str, ...]
    layers: Mapping[str, Any]
    """The annotated layers, by name; the mapping cannot be changed."""
    second: int | None
    """The word at which the second sentence of a pair begins; `None`: one sentence."""
    id: str
    text: str
    """The words as they were written, with the white space between them; empty: unknown."""
    place: str = field(compare=False)
    """Where it was read (`FILE:LINE`), for messages; not part of its value."""
    notes: tuple[str, ...] = field(compare=False)
    """What its reader changed or found odd, one text per case, to be counted; not part of its value."""

    def __init__(
        self,
        words: tuple[str, ...],
        layers: Mapping[str, Any] | None = None,
        second: int | None = None,
        id: str = "",
        text: str = "",
        place: str = "",
        notes: tuple[str, ...] = (),
        **named: Any,
    ) -> None:
        if layers is not None:
            named = {**layers, **named}
        annotated = {name: value for name, value in named.items() if value is not None}
        put = object.__setattr__
        put(self, "words", words)
        put(self, "layers", MappingProxyType(annotated))
        put(self, "second", second)
        put(self, "id", id)
        put(self, "text", text)
        put(self, "place", place)
        put(self, "notes", notes)

    def __len__(self) -> int:
        return len(self.words)

    def __hash__(self) -> int:
        return hash((self.words, frozenset(self.layers.items()), self.second, self.id, self.text))

    def __repr__(self) -> str:
        others = {key: value for key in ("second", "id", "text") if (value := getattr(self, key))}
        shown = "".join(f", {key}={value!r}" for key, value in others.items())
        return f"Sentence({self.words!r}, {dict(self.layers)!r}{shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        others = (self.second, self.id, self.text, self.place, self.notes)
        return Sentence, (self.words, dict(self.layers), *others)

    def _repr_html_(self) -> str:
        """The sentence as notebooks show it."""
        from mtl.tasks.sentence_html import html_of

        return html_of(self)

    @property
    def tags(self) -> tuple[str, ...] | None:
        """The layer `tags`: the treebank's own tags."""
        return self.layers.get("tags")

    @property
    def upos(self) -> tuple[str, ...] | None:
        """The layer `upos`: universal tags."""
        return self.layers.get("upos")

    @property
    def entities(self) -> tuple[Span, ...] | None:
        """The layer `entities`."""
        return self.layers.get("entities")

    @property
    def arcs(self) -> Arcs | None:
        """The layer `arcs`: a dependency tree."""
        return self.layers.get("arcs")

    @property
    def tree(self) -> Tree | None:
        """The layer `tree`: constituents."""
        return self.layers.get("tree")

    @property
    def frames(self) -> tuple[Frame, ...] | None:
        """The layer `frames`: predicates with their arguments."""
        return self.layers.get("frames")

    def layer(self, name: str) -> Any:
        """The layer of that name; `None`: not annotated.

        `feats.Case` is the feature `Case` of each word in the layer `feats` (`feature_of`), unless there is a
        layer of that name itself.
        """
        found = self.layers.get(name)
        if found is not None or "." not in name:
            return found
        bundles, feature = self.layers.get(bundles_of(name)), name.partition(".")[2]
        return tuple([feature_of(bundle, feature) for bundle in bundles]) if is_per_word(bundles) else None

    def with_layers(self, layers: Mapping[str, Any]) -> Sentence:
        """The sentence with these layers added or replaced; `None` removes a layer."""
        return replace(self, layers={**self.layers, **layers}) if layers else self


def bundles_of(layer: str) -> str:
    """The layer whose bundles a layer of one feature (`feats.Case`) comes from; else the layer itself."""
    return layer.partition(".")[0]


@lru_cache(maxsize=100_000)
def feature_of(bundle: str, name: str) -> str:
    """The value of one feature in a bundle such as `Case=Nom|Number=Sing`; `_` if it is not there."""
    features = dict(part.partition("=")[::2] for part in bundle.split("|"))
    return features.get(name) or NO_FEATURES


def in_order(bundle: str) -> str:
    """A bundle of features in UD's order: that of the alphabet, without regard to case."""
    return "|".join(sorted(bundle.split("|"), key=str.lower))


def annotation_of(value: Any) -> str:
    """What a layer with this value holds, in words."""
    if isinstance(value, str):
        return "a text"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, Arcs):
        return "a dependency tree"
    if isinstance(value, Graph):
        return "a graph"
    if isinstance(value, Tree):
        return "a tree of constituents"
    if is_per_word(value):
        return "a label per word"
    return "predicates with arguments" if value and isinstance(value[0], Frame) else "labelled spans"


def is_label(layer: Any) -> TypeGuard[str | float]:
    """Whether a layer is a label of the whole sentence or pair: the name of a class, a text or a number."""
    return isinstance(layer, str | int | float)


def is_per_word(layer: Any) -> TypeGuard[tuple[str, ...]]:
    """Whether a layer is a text per word."""
    return isinstance(layer, tuple) and bool(layer) and isinstance(layer[0], str)


LEMMAS, FEATS = "lemmas", "feats"
"""The names of the layers that are columns of CoNLL-U: a lemma per word, and a bundle of features."""
NO_FEATURES = "_"
"""The bundle of a word without features, and the value of a feature that a word does not have."""
