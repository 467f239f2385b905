"""The names of tasks, in the catalogue's order."""

from __future__ import annotations

from mtl.tasks.catalogue import TASKS
from mtl.tasks.order import NAMES, in_order_of_catalogue


def test_the_names_are_those_of_the_catalogue() -> None:
    assert tuple(TASKS) == NAMES


def test_any_order_becomes_the_catalogues() -> None:
    assert in_order_of_catalogue(reversed(NAMES)) == NAMES
    assert in_order_of_catalogue(["dep", "dep"]) == ("dep",)
