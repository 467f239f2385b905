"""Names of the laboratory's controls: a task beside itself, and one whose labels mean nothing."""

from __future__ import annotations

from collections.abc import Sequence

CONTROL = {"kind": "drawn"}
"""The settings of the task `control`."""


def twins(tasks: Sequence[str]) -> list[tuple[str, ...]]:
    """The setup `twins` of a study: each task beside itself, with half of the sentences each."""
    return [(f"{task}~a", f"{task}~b") for task in tasks]
