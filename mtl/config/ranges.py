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
        for key, value in _values(f"{prefix}{name}", getattr(settings, name)):
            allowed = range_of(type(settings), name)
            if is_dataclass(value):
                yield from out_of_range(value, f"{key}.")
            elif not isinstance(value, int | float) or isinstance(value, bool):
                continue
            elif allowed is not None and value not in allowed:
                yield f"{key}={_short(value)}: use a number {allowed}"
            elif not math.isfinite(value):
                yield f"{key}={value}: use a finite number"


def _values(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values that a key holds, with their own keys."""
    if isinstance(value, Mapping):
        yield from ((f"{key}.{name}", inner) for name, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{key}[{number}]", inner) for number, inner in enumerate(value))
    else:
        yield key, value


def _short(value: int | float) -> str:
    """A number in at most 20 characters."""
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}… ({counted(len(text), 'digit')})"
