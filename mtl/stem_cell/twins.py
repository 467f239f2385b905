"""Twins: a task trained beside itself, as the control for what sharing costs where contents agree.

The twins of `dep` are `dep~a` and `dep~b`: two decoders for the same task over one encoder, each trained on
one half of the sentences that are annotated for the task, and scored on all of dev and test.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Literal

from mtl.tasks.sentence import Sentence
from mtl.tasks.variants import Variant, task_of

Part = Literal["a", "b"]
PARTS: tuple[Part, ...] = ("a", "b")


def task_and_part(name: str) -> tuple[str, Part | None]:
    """The task that a name stands for, and its half of the sentences; `None`: all of them.

    Examples:
        >>> task_and_part("dep~a"), task_and_part("dep")
        (('dep', 'a'), ('dep', None))
    """
    task = task_of(name)
    return task, next((part for part in PARTS if name == f"{task}~{part}"), None)


def twins_of(task: str) -> tuple[str, str]:
    """The names of a task's twins."""
    return f"{task}~a", f"{task}~b"


def part_of(sentence: Sentence, number: int) -> Part:
    """The half that a training sentence belongs to, by crc32 of its id.

    A sentence without an id gets one from its file's name and line, or from its number in the corpus.
    Sentences with the same id are in the same half.
    """
    file, _, line = sentence.place.rpartition(":")
    identity = sentence.id or (f"{Path(file).name}:{line}" if file else str(number))
    return PARTS[zlib.crc32(identity.encode()) % len(PARTS)]


def _twin(part: Part) -> Variant:
    return Variant(
        lambda sentence, number: part_of(sentence, number) == part, "twin", "half", "by a hash of its id"
    )


FIRST, SECOND = _twin("a"), _twin("b")
