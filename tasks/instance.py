"""Tasks with names of a user's own: what a kind does, on a layer of any name.

`instance("slots", Ner, "slots")` is a class like those of the tasks that come with the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from mtl.tasks.halves import Half
from mtl.tasks.sentence import annotation_of
from mtl.tasks.task import Task


def instance(name: str, kind: type[Task], layer: str, half: Half | None = None) -> type[Task]:
    """The class of a kind's tasks with this name and layer; the same class for the same arguments.

    A kind that reads only words keeps its own layer.
    """
    return _class_of(name, kind, layer, half)


@cache
def _class_of(name: str, kind: type[Task], layer: str, half: Half | None) -> type[Task]:
    standard, *others = kind.layers or (kind.layer,)
    made: dict[str, Any] = {"name": name, "standard": standard, "half": half}
    if kind.layers:
        made |= {"layer": layer, "layers": (layer, *others)}

    def reduced(task: Any) -> tuple[Callable[..., Task], tuple[Any, ...]]:
        settings = {each.name: getattr(task, each.name) for each in fields(task)}
        return _made, (name, kind, layer, half, settings)

    return type(f"{kind.__name__}_{name}", (kind,), made | {"__doc__": kind.__doc__, "__reduce__": reduced})


def misfit(value: Any, kind: type[Task]) -> str | None:
    """Why a task of this kind cannot learn a layer with this value; `None` if it can."""
    found = annotation_of(value)
    if found == kind.annotation or (value == () and kind.finds):
        return None if (wrong := kind.fault(value)) is None else f"has a fault: {wrong}"
    return f"holds {found}, and a task of kind {kind.kind} learns {kind.annotation}"


def _made(name: str, kind: type[Task], layer: str, half: Half | None, settings: Mapping[str, Any]) -> Task:
    return _class_of(name, kind, layer, half)(**settings)
