"""Fields of a configuration that follow from tables: one per task of the catalogue, for instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from mtl.tasks.catalogue import TASKS
from mtl.tasks.task import Task

T = TypeVar("T")


class Slot(NamedTuple):
    """A field of a dataclass: its type, its default (a value or a `field`) and its help."""

    type: Any
    default: Any
    help: str


def slot_per_task(slot: Callable[[type[Task]], Slot]) -> Callable[[type[T]], type[T]]:
    """Give a class, before `dataclass` reads it, a field per task, named as the task."""
    return with_slots({name: slot(task) for name, task in TASKS.items()})


def with_slots(slots: Mapping[str, Slot]) -> Callable[[type[T]], type[T]]:
    """Give a class, before `dataclass` reads it, further fields.

    The source has no docstring of these fields: their help is added to the class's docstring.
    """

    def add(cls: type[T]) -> type[T]:
        help_texts = []
        for name, (hint, default, text) in slots.items():
            cls.__annotations__[name] = hint
            setattr(cls, name, default)
            help_texts.append(f"    {name}: {text}")
        document = cls.__doc__ or ""
        title = [] if "\nAttributes:\n" in document else ["", "Attributes:"]
        cls.__doc__ = "\n".join([document, *title, *help_texts])
        return cls

    return add
