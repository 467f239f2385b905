"""A field per task of the catalogue in a configuration."""

from __future__ import annotations

from collections.abc import Callable
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
    """Give a class, before `dataclass` reads it, a field per task, named as the task.

    `--help` reads the help of fields from two places: the attribute docstrings of the source, where these
    fields are not, and the class's docstring, to which their help is added.
    """

    def with_slots(cls: type[T]) -> type[T]:
        help_texts = []
        for name, task in TASKS.items():
            cls.__annotations__[name], default, text = slot(task)
            setattr(cls, name, default)
            help_texts.append(f"    {name}: {text}")
        cls.__doc__ = "\n".join([cls.__doc__ or "", "", "Attributes:", *help_texts])
        return cls

    return with_slots
