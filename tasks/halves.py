"""Halves of the training sentences: of two tasks on one layer, each can learn from its own."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Literal

from mtl.tasks.sentence import Sentence

Half = Literal["a", "b"]
HALVES: tuple[Half, ...] = ("a", "b")


def half_of(sentence: Sentence, number: int) -> Half:
    """The half that a training sentence belongs to, by crc32 of its id; `number` is its place in the corpus.

    A sentence without an id gets one from its file's name and line, or from its number. Sentences with the
    same id are in the same half.
    """
    file, _, line = sentence.place.rpartition(":")
    identity = sentence.id or (f"{Path(file).name}:{line}" if file else str(number))
    return HALVES[zlib.crc32(identity.encode()) % len(HALVES)]
