"""The setup `twins` of a study: each task beside itself."""

from __future__ import annotations

from collections.abc import Sequence

from mtl.config.schema import NAMES
from mtl.errors import InputError
from mtl.stem_cell.twins import twins_of


def twins(tasks: Sequence[str]) -> list[tuple[str, ...]]:
    """The twins of each task; raises `InputError` for a task that has none."""
    for task in tasks:
        if not set(twins_of(task)) <= set(NAMES):
            raise InputError(
                f"setup 'twins': {task} has no twins, only tasks on words have: name the setups instead"
            )
    return [twins_of(task) for task in tasks]
