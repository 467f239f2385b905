"""Small JSON files by which processes tell each other what is to be done and what has been done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
SETTLED = 2.0
"""Seconds without a change after which a file's time distinguishes it from its successor."""


def record_of(file: Path, read: Callable[[Any], T]) -> T | None:
    """What `read` makes of a file's values, once for every change; `None` if there is no file.

    Raises what `read` raises, and `ValueError` for a file that is not JSON.
    """
    try:
        there = file.stat()
        # Two changes within a tick of the file system's clock can leave the same state.
        settled = abs(time.time() - there.st_mtime) > SETTLED
        look = _read if settled else _read.__wrapped__
        return cast(T, look(file, read, there.st_mtime_ns, there.st_size, there.st_ino))
    except FileNotFoundError:
        return None


@lru_cache(maxsize=10_000)
def _read(file: Path, read: Callable[[Any], Any], *state: int) -> Any:
    return read(json.loads(file.read_bytes()))


def restored(kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass of which `dataclasses.asdict` and JSON made these values; their types are not checked.

    Fields that this version does not know are left out. Raises `TypeError` where a field is missing.
    """
    types = _types(cast(Any, kind))
    return kind(**{name: _restored(types[name], value) for name, value in values.items() if name in types})


def _restored(type_: Any, value: Any) -> Any:
    if isinstance(value, dict):
        group = _group(type_)
        if group is not None and get_origin(type_) is dict:
            return {name: restored(group, inner) for name, inner in value.items()}
        return value if group is None else restored(group, value)
    return tuple(value) if isinstance(value, list) and _is_tuple(type_) else value


@lru_cache
def _group(type_: Any) -> Any:
    """The dataclass of a type; the type of a value that may be null is a union. `None`: there is none."""
    return next((kind for kind in (type_, *get_args(type_)) if is_dataclass(kind)), None)


@lru_cache
def _is_tuple(type_: Any) -> bool:
    return any(get_origin(kind) is tuple for kind in (type_, *get_args(type_)))


@lru_cache
def _types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}
