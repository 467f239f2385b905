"""Numbers outside of the ranges that stand beside the types of settings (`mtl.tasks.ranges`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

from mtl.config.marks import marks_of
from mtl.tasks.in_words import counted
from mtl.tasks.ranges import Range


def range_of(kind: Any, name: str) -> Range | None:
    """The range of a dataclass's field; `None`: any finite number."""
    return next((mark for mark in marks_of(kind)[name] if isinstance(mark, Range)), None)


def out_of_range(settings: Any, prefix: str = "") -> Iterator[str]:
    """What is wrong with the numbers in a dataclass's object, a line each; it begins with the dotted key."""
    for name in marks_of(type(settings)):
        value, allowed = getattr(settings, name), range_of(type(settings), name)
        inner: dict[str, Any] = {"": value}
        if isinstance(value, Mapping):
            inner = {f".{key}": each for key, each in value.items()}
        elif isinstance(value, list | tuple):
            inner = {f"[{number}]": each for number, each in enumerate(value)}
        for place, each in inner.items():
            key = f"{prefix}{name}{place}"
            if is_dataclass(each):
                yield from out_of_range(each, f"{key}.")
            elif not isinstance(each, int | float) or isinstance(each, bool):
                continue
            elif allowed is not None and each not in allowed:
                yield f"{key}={_short(each)}: use a number {allowed}"
            elif not math.isfinite(each):
                yield f"{key}={each}: use a finite number"


def _short(value: int | float) -> str:
    """A number in at most 20 characters."""
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}… ({counted(len(text), 'digit')})"
