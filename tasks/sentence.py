"""A sentence and its five annotation layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from tasks.tree import Tree


class Span(NamedTuple):
    """A labelled stretch of words; `end` is exclusive, indices start at 0."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Arcs:
    """A dependency tree: per word its head (0 is the root, else 1-based) and its relation to it."""

    heads: tuple[int, ...]
    relations: tuple[str, ...]


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


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and what is known about them; a layer that is `None` is *not annotated*, not empty.

    A pair of sentences has the words of both, and labels only.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    upos: tuple[str, ...] | None = None
    entities: tuple[Span, ...] | None = None
    arcs: Arcs | None = None
    tree: Tree | None = None
    frames: tuple[Frame, ...] | None = None
    labels: tuple[Label, ...] | None = None
    """One per task that the sentence has a label in, by the names of the tasks in alphabetical order."""
    second: int | None = None
    """The word at which the second sentence of a pair begins; `None`: one sentence."""
    id: str = ""
    text: str = ""
    """The words as they were written, with the blanks that were between them; empty: not known."""
    place: str = field(default="", compare=False, repr=False)
    """Where it was read (`FILE:LINE`), for messages; no part of its value."""

    def __len__(self) -> int:
        return len(self.words)

    def layer(self, name: str) -> Any:
        """A layer: the field of that name, or else the label in the task of that name; `None` without any."""
        if name in _FIELDS:
            return getattr(self, name)
        return next((label.value for label in self.labels or () if label.task == name), None)

    def with_layers(self, layers: Mapping[str, Any]) -> Sentence:
        """The sentence with other layers, by their names as in `layer`; `None` takes a layer away."""
        changed = {name: value for name, value in layers.items() if name in _FIELDS}
        named = {name: value for name, value in layers.items() if name not in _FIELDS}
        if named and (self.labels is not None or any(value is not None for value in named.values())):
            of_tasks = {**dict(self.labels or ()), **named}
            labels = [Label(task, of_tasks[task]) for task in sorted(of_tasks) if of_tasks[task] is not None]
            changed["labels"] = tuple(labels) or None
        return replace(self, **changed) if changed else self


_FIELDS = frozenset(field.name for field in fields(Sentence))
