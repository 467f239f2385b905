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

    The source has no docstring of these fields: their help is added to the class's docstring.
    """

    def with_slots(cls: type[T]) -> type[T]:
        cls.__doc__ = f"{cls.__doc__}\n\nAttributes:"
        for name, task in TASKS.items():
            cls.__annotations__[name], default, text = slot(task)
            setattr(cls, name, default)
            cls.__doc__ += f"\n    {name}: {text}"
        return cls

    return with_slots
