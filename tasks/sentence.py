"""A sentence and its annotation layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
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

    def layer(self, name: str) -> Any:
        """The field of that name or, without such a field, the label in that task; `None`: not annotated."""
        if name in _FIELDS:
            return getattr(self, name)
        return next((label.value for label in self.labels or () if label.task == name), None)

    def with_layers(self, layers: Mapping[str, Any]) -> Sentence:
        """The sentence with these layers replaced, named as in `layer`; `None` removes a layer."""
        changed = {name: value for name, value in layers.items() if name in _FIELDS}
        labels = {name: value for name, value in layers.items() if name not in _FIELDS}
        if labels and (self.labels is not None or any(value is not None for value in labels.values())):
            by_task = {**dict(self.labels or ()), **labels}
            present = [Label(task, by_task[task]) for task in sorted(by_task) if by_task[task] is not None]
            changed["labels"] = tuple(present) or None
        return replace(self, **changed) if changed else self


_FIELDS = frozenset(field.name for field in fields(Sentence))
