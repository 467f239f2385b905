"""The names of tasks in the order in which everything lists them, for code that knows no task itself."""

from __future__ import annotations

from collections.abc import Iterable

NAMES = (
    "pos", "ner", "dep", "con", "srl", "cola", "sst2", "mrpc", "rte", "qnli", "mnli", "stsb",
    "classify", "regress", "translate",
)  # fmt: skip
"""Those of the catalogue (`mtl.tasks.catalogue.TASKS`), in its order."""


_DRAW = " draw "
_OF_ALL = ("", "shared")
"""Names that stand for all tasks, and come first."""


def of_draw(task: str, draw: int) -> str:
    """The name of a mask of a task with random labels where there are masks of several draws."""
    return f"{task}{_DRAW}{draw}"


def in_order_of_catalogue(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once, in the order in which everything lists tasks; names of a user's own come last.

    A half of a task (`dep~a`) stands where the task does, a mask that tasks share (`pos+dep`) where the first
    of them does. Draws of random labels (`of_draw`) are ordered by their number.
    """
    return tuple(sorted(set(names), key=place_of))


def place_of(name: str) -> tuple[int, str, int, str]:
    """The key by which names are sorted in that order."""
    base, _, draw = name.partition(_DRAW)
    whole = (task.partition("~")[0] for task in base.split("+"))
    known = [NAMES.index(task) for task in whole if task in NAMES]
    place = min(known, default=-1 if base in _OF_ALL else len(NAMES))
    return place, base, int(draw) if draw.isdecimal() else 0, name
