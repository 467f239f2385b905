"""A sentence and its five annotation layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

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


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and what is known about them; a layer that is `None` is *not annotated*, not empty."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    upos: tuple[str, ...] | None = None
    entities: tuple[Span, ...] | None = None
    arcs: Arcs | None = None
    tree: Tree | None = None
    frames: tuple[Frame, ...] | None = None
    id: str = ""
    place: str = field(default="", compare=False, repr=False)
    """Where it was read (`FILE:LINE`), for messages; no part of its value."""

    def __len__(self) -> int:
        return len(self.words)
