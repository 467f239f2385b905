"""The names of tasks in the order in which everything lists them, for what knows no task itself."""

from __future__ import annotations

from collections.abc import Iterable

from mtl.registries import names
from mtl.tasks.variants import task_of

NAMES = (
    "pos", "ner", "dep", "con", "srl", *names("tasks"), "cola", "sst2", "mrpc", "rte", "qnli", "mnli", "stsb",
    "classify", "regress", "translate",
)  # fmt: skip
"""Those of the catalogue (`mtl.tasks.catalogue.TASKS`), in its order."""


_DRAW = " draw "
_OF_ALL = ("", "shared")
"""What stands for all tasks, and comes before each."""


def of_draw(task: str, draw: int) -> str:
    """The name of a mask of a task with random labels where masks of several draws of them are together."""
    return f"{task}{_DRAW}{draw}"


def in_order_of_catalogue(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once, in the order in which everything lists tasks: those of a user's own last.

    A variant stands where its task does, a mask that tasks share (`pos+dep`) where the first of them does,
    draws of random labels (`of_draw`) by their number.
    """
    places = {name: place for place, name in enumerate(NAMES)}

    def place(name: str) -> tuple[int, str, int, str]:
        base, _, draw = name.partition(_DRAW)
        known = [places[task] for task in map(task_of, base.split("+")) if task in places]
        return (
            min(known, default=-1 if base in _OF_ALL else len(NAMES)),
            base,
            int(draw) if draw.isdecimal() else 0,
            name,
        )

    return tuple(sorted(set(names), key=place))
