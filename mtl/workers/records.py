"""Small JSON files by which processes tell each other what is to be done and what has been done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
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
    hints = _hints(cast(Any, kind))
    return kind(**{name: _restored(hints[name], value) for name, value in values.items() if name in hints})


def _restored(hint: Any, value: Any) -> Any:
    kinds = (hint, *get_args(hint))  # of a value that may be null, the type is an argument
    group: Any = next((kind for kind in kinds if is_dataclass(kind)), None)
    if isinstance(value, dict) and group is not None:
        if get_origin(hint) is dict:
            return {name: restored(group, inner) for name, inner in value.items()}
        return restored(group, value)
    is_tuple = any(get_origin(kind) is tuple for kind in kinds)
    return tuple(value) if isinstance(value, list) and is_tuple else value


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
