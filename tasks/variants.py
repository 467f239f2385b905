"""Variants of tasks: a name of its own for a task that learns from a part of its sentences.

`TASK~VARIANT` has a decoder of its own, and settings, files, loss weight and layer of its task. A registry
(`mtl.registries`) says which variants there are, by the names after the mark, and what each learns from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mtl.registries import entry, module_of, names
from mtl.tasks.sentence import Sentence

_MARK = "~"


@dataclass(frozen=True)
class Variant:
    """What a variant learns from; on other splits than train it is as its task."""

    learns_from: Callable[[Sentence, int], bool]
    """Whether it learns from a training sentence, given with its number in the corpus."""
    kind: str
    """What such a variant of a task is called, for messages."""
    part: str
    """What its part of the sentences is called."""
    chosen: str
    """How sentences come into its part."""


def variant_of(name: str) -> Variant | None:
    """The variant that a name stands for; `None` for the name of a task."""
    task = task_of(name)
    return None if task == name else entry("variants", name[len(task) + len(_MARK) :])


def module_of_variant(name: str) -> str | None:
    """The module of the variant that a name stands for; `None` for the name of a task."""
    task = task_of(name)
    return None if task == name else module_of("variants", name[len(task) + len(_MARK) :])


def task_of(name: str) -> str:
    """The task that a name stands for: of a variant its task, else the name itself."""
    task, _, variant = name.rpartition(_MARK)
    return task if variant in names("variants") and task else name


def tasks_of(given: Iterable[str]) -> tuple[str, ...]:
    """The tasks that the names stand for, each once."""
    return tuple(dict.fromkeys(map(task_of, given)))


def variants_of(task: str) -> tuple[str, ...]:
    """The names of a task's variants."""
    return tuple(f"{task}{_MARK}{variant}" for variant in names("variants"))
