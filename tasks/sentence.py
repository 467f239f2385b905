"""A sentence and its annotation layers, and an annotated sentence as HTML for notebooks.

Nothing is loaded from elsewhere. Text and lines have the colour of the page, to be legible in dark notebooks.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from html import escape
from itertools import accumulate, pairwise
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
    """A dependency tree: per word its head (0 is the root, else 1-based) and its relation to that head.

    A tree may be partial: the head of a word is `None` where it is not known. Its relation then counts for
    nothing.
    """

    heads: tuple[int | None, ...]
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


class MadeUpId(str):
    """An id that the program made, since the file had none; it names a sentence, but does not identify it."""

    __slots__ = ()


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
    """What a file or a user calls it; a `MadeUpId` if nobody has given it one."""
    text: str
    """The words as they were written, with the white space between them; empty: unknown."""
    place: str = field(compare=False)
    """Where it was read (`FILE:LINE`), for messages; not part of its value."""
    notes: tuple[str, ...] = field(compare=False)
    """What its reader changed or found odd, one text per case, to be counted; not part of its value."""
    document: str
    """The document that it is from; empty: unknown. Sentences of one document are not independent."""

    def __init__(
        self,
        words: tuple[str, ...],
        layers: Mapping[str, Any] | None = None,
        second: int | None = None,
        id: str = "",
        text: str = "",
        place: str = "",
        notes: tuple[str, ...] = (),
        document: str = "",
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
        put(self, "document", document)

    def __len__(self) -> int:
        return len(self.words)

    def __hash__(self) -> int:
        return hash(
            (self.words, frozenset(self.layers.items()), self.second, self.id, self.text, self.document)
        )

    def __repr__(self) -> str:
        others = {key: value for key in ("second", "id", "text", "document") if (value := getattr(self, key))}
        shown = "".join(f", {key}={value!r}" for key, value in others.items())
        return f"Sentence({self.words!r}, {dict(self.layers)!r}{shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        others = (self.second, self.id, self.text, self.place, self.notes, self.document)
        return Sentence, (self.words, dict(self.layers), *others)

    def _repr_html_(self) -> str:
        """The sentence as notebooks show it."""

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


def features_in_order(bundle: str) -> str:
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
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff]")
"""Characters that no text may hold: control characters that are no white space, and halves of others."""
NO_FEATURES = "_"
"""The bundle of a word without features, and the value of a feature that a word does not have."""


_LETTER, _GAP, _LINE, _STEP = 7.9, 14.0, 18.0, 22.0
"""Width of a letter, room between words, height of a line and of a level of arcs, in pixels."""
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9")
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
_SHOWN = ("tags", "upos", "entities", "arcs", "tree", "frames")
_STYLE = "font: 13px monospace; overflow-x: auto; white-space: nowrap; padding-bottom: 4px"


class _Arc(NamedTuple):
    """An arc from a head (-1: the root) to a dependent, by the places of words from 0."""

    head: int
    dependent: int
    label: str


def html_of(sentence: Sentence) -> str:
    """The sentence as one element of HTML; a layer that is not annotated is left out."""
    arcs = [] if sentence.arcs is None else _arcs(sentence.arcs)
    parts = [_words(sentence, arcs)]
    if sentence.tree is not None:
        parts.append(_tree(sentence.tree))
    if sentence.frames is not None:
        frames = [_frame(sentence.words, frame) for frame in sentence.frames]
        parts += frames or [_line("frames", "none")]
    others = sorted((is_label(value), name) for name, value in sentence.layers.items() if name not in _SHOWN)
    for _, name in others:
        parts += _named(sentence, name, sentence.layers[name])
    return f'<div style="{_STYLE}">{"".join(parts)}</div>'


def _named(sentence: Sentence, name: str, value: Any) -> list[str]:
    """Any other layer."""
    words = sentence.words
    if is_label(value):
        return [_line(name, value if isinstance(value, str) else f"{value:.2f}")]
    if not value or value == Graph(()):
        return [_line(name, "none")]
    if isinstance(value, Arcs):
        return [_line(name, ""), _words(Sentence(words), _arcs(value))]
    if isinstance(value, Graph):
        arcs = [_Arc(head - 1, dependent - 1, label) for dependent, head, label in value.arcs]
        return [_line(name, ""), _words(Sentence(words), arcs)]
    if isinstance(value, Tree):
        return [_line(name, ""), _tree(value)]
    if isinstance(value[0], Frame):
        return [_line(name, ""), *(_frame(words, frame) for frame in value)]
    if isinstance(value[0], Span):
        return [_line(name, ""), _words(Sentence(words, entities=value), [])]
    return [_line(name, ""), _words(Sentence(words, tags=value), [])]


def _text(text: str) -> str:
    return escape(_UNPRINTABLE.sub("\ufffd", text))


def _width(text: str) -> float:
    """The width of a text in a font whose letters are equally wide, or twice as wide."""
    return _LETTER * sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _line(name: str, value: str) -> str:
    return f"<div><b>{_text(name)}</b> {_text(value)}</div>"


def _svg(width: float, height: float, parts: Iterable[str], title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_text(title)}" '
        f'style="display: block" width="{width:.0f}" height="{height:.0f}" '
        'font-family="monospace" font-size="13" '
        f'text-anchor="middle" fill="currentColor">{"".join(parts)}</svg>'
    )


def _label(x: float, y: float, text: str, colour: str = "", size: int = 13) -> str:
    fill = f' fill="{colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{fill}>{_text(text)}</text>'


def _places(words: Sequence[str], *below: Sequence[str] | None) -> tuple[list[float], float]:
    """The centre of each word's column, which fits the labels below the word, and the total width."""
    columns = list(zip(words, *(layer for layer in below if layer is not None), strict=True))
    widths = [max(map(_width, column)) + _GAP for column in columns]
    ends = list(accumulate(widths))
    return [end - width / 2 for end, width in zip(ends, widths, strict=True)], ends[-1] if ends else 0.0


def _words(sentence: Sentence, arcs: Sequence[_Arc]) -> str:
    """Words with arcs above, and tags and entities below; a bar separates the sentences of a pair."""
    words, labels = sentence.words, [""] * len(sentence.words)
    for _, dependent, label in arcs:
        labels[dependent] = max(labels[dependent], label, key=len)
    places, width = _places(words, sentence.tags, sentence.upos, labels)
    levels = _levels(arcs)
    top = _STEP * (max(levels, default=0) + bool(arcs)) + _LINE
    parts = [_drawn(arc, places, level, top) for arc, level in zip(arcs, levels, strict=True)]
    parts += [_label(x, top, word) for x, word in zip(places, words, strict=True)]
    if sentence.second is not None and 0 < sentence.second < len(words):
        x = (places[sentence.second - 1] + places[sentence.second]) / 2
        parts.append(f'<path d="M{x:.1f} 2V{top + 4:.1f}" stroke="currentColor"/>')
    bottom = top
    for layer in (sentence.upos, sentence.tags):
        if layer is not None:
            bottom += _LINE
            parts += [_label(x, bottom, tag, "#808080", 11) for x, tag in zip(places, layer, strict=True)]
    marks, bottom = _entities(sentence, places, bottom)
    return _svg(width, bottom + 8, [*parts, *marks], " ".join(words))


def _arcs(arcs: Arcs) -> list[_Arc]:
    return [
        _Arc(head - 1, dependent, label)
        for dependent, (head, label) in enumerate(zip(arcs.heads, arcs.relations, strict=True))
        if head is not None
    ]


def _levels(arcs: Sequence[_Arc]) -> list[int]:
    """How high each arc rises: above all shorter ones that it spans; 0 for the root's."""
    levels = [0] * len(arcs)
    highest = [0] * (max((max(arc.head, arc.dependent) for arc in arcs), default=0) + 1)
    for number in sorted(
        range(len(arcs)), key=lambda number: abs(arcs[number].head - arcs[number].dependent)
    ):
        head, dependent, _ = arcs[number]
        if head >= 0 and head != dependent:
            start, end = sorted((head, dependent))
            levels[number] = 1 + max(highest[start:end])
            highest[start:end] = [levels[number]] * (end - start)
    return levels


def _drawn(arc: _Arc, places: Sequence[float], level: int, top: float) -> str:
    """An arc with its label and an arrow at its dependent; the arc from the root comes from above."""
    end, base = places[arc.dependent], top - 14
    arrow = f'<path d="M{end - 3:.1f} {base - 5:.1f}L{end + 3:.1f} {base - 5:.1f}L{end:.1f} {base:.1f}Z"/>'
    if level == 0:
        path = f"M{end:.1f} {base - 14:.1f}V{base:.1f}"
        text = _label(end, base - 16, arc.label, "", 10)
    else:
        start = places[arc.head] + (4 if arc.head < arc.dependent else -4)
        high = base - _STEP * level
        path = f"M{start:.1f} {base:.1f}C{start:.1f} {high:.1f} {end:.1f} {high:.1f} {end:.1f} {base:.1f}"
        text = _label((start + end) / 2, base - _STEP * level * 0.75 - 2, arc.label, "", 10)
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>{arrow}{text}'


def _entities(sentence: Sentence, places: Sequence[float], bottom: float) -> tuple[list[str], float]:
    """A line below the words of each entity, with its type; those that overlap are on several levels."""
    parts: list[str] = []
    ends: list[int] = []
    if sentence.entities is not None and not sentence.entities:
        return [_label(40.0, bottom + _LINE, "no entity", "#808080", 11)], bottom + _LINE
    for start, end, label in sorted(sentence.entities or (), key=lambda span: (span.start, -span.end)):
        level = next((number for number, used in enumerate(ends) if used <= start), len(ends))
        ends[level : level + 1] = [end]
        y, colour = bottom + 6 + 20 * level, _COLOURS[sum(map(ord, label)) % len(_COLOURS)]
        left, right = (
            places[place] + side * _width(sentence.words[place]) / 2
            for place, side in ((start, -1), (end - 1, 1))
        )
        parts.append(f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="{colour}" stroke-width="3"/>')
        parts.append(_label((left + right) / 2, y + 12, label, colour, 11))
    return parts, bottom + 20 * len(ends)


class _Node(NamedTuple):
    """Where a node is drawn."""

    x: float
    height: int


def _tree(tree: Tree) -> str:
    """Constituents as a tree, with the words in a line at its foot."""
    leaves = list(tree.leaves())
    places, width = _places([str(leaf.children) for leaf in leaves], [leaf.label for leaf in leaves])
    foot = _STEP * tree.height()
    rest = iter(places)
    parts: list[str] = []

    def y_of(height: int) -> float:
        return foot - _STEP * (height - 1)

    def drawn(node: Tree, children: list[_Node]) -> _Node:
        if isinstance(node.children, str):
            x = next(rest)
            parts.append(_label(x, foot, node.children))
            parts.append(_label(x, y_of(2), node.label, "#808080", 11))
            return _Node(x, 2)
        height = 1 + max(child.height for child in children)
        here = _Node((children[0].x + children[-1].x) / 2, height)
        parts.append(_label(here.x, y_of(height), node.label or "()", _COLOURS[0], 11))
        parts.extend(
            f'<path d="M{here.x:.1f} {y_of(height) + 3:.1f}L{child.x:.1f} {y_of(child.height) - 11:.1f}" '
            'stroke="currentColor" stroke-opacity="0.5"/>'
            for child in children
        )
        return here

    tree.fold(drawn)
    return f"<div>{_svg(width, foot + 6, parts, 'constituents')}</div>"


def _frame(words: Sequence[str], frame: Frame) -> str:
    """A predicate with its sense, and its arguments in order."""
    arguments = "".join(
        f' <span style="border-bottom: 2px solid {_COLOURS[sum(map(ord, label)) % len(_COLOURS)]}">'
        f"<small>{_text(label)}</small> {_text(' '.join(words[start:end]))}</span>"
        for start, end, label in sorted(frame.arguments)
    )
    sense = "" if frame.sense is None else f" <small>{_text(frame.sense)}</small>"
    return f"<div><b>{_text(words[frame.predicate])}</b>{sense}{arguments}</div>"
