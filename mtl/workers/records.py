"""Small JSON files by which processes tell each other what is to do and how far it is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
SETTLED = 2.0
"""Seconds without a change after which a file counts as one that is told from its successor by its time."""


@dataclass(frozen=True)
class Records:
    """Records that were read, each once for every change of its file."""

    known: dict[Path, tuple[tuple[int, int, int], Any]] = field(default_factory=dict)
    """What settled files hold, each with the state of the file that it was read from."""

    def of(self, file: Path, read: Callable[[Any], T]) -> T | None:
        """The record that `read` makes of a file's values; `None` if there is no file.

        Raises what `read` raises, and `ValueError` for a file that is no JSON.
        """
        try:
            there = file.stat()
            state = there.st_mtime_ns, there.st_size, there.st_ino
            if file in self.known and self.known[file][0] == state:
                record: T = self.known[file][1]
                return record
            record = read(json.loads(file.read_bytes()))
        except FileNotFoundError:
            self.known.pop(file, None)
            return None
        # Two changes within a tick of the file system's clock can leave the same state.
        if abs(time.time() - there.st_mtime) > SETTLED:
            self.known[file] = state, record
        return record


def restored(kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass of which `dataclasses.asdict` and JSON made these values.

    Fields that this version does not know are left out. Raises `TypeError` where a field is missing.
    """
    types = _types(cast(Any, kind))
    return kind(**{name: _restored(types[name], value) for name, value in values.items() if name in types})


def _restored(type_: Any, value: Any) -> Any:
    kinds: tuple[Any, ...] = (type_, *get_args(type_))  # of a value that may be null the type is an argument
    if isinstance(value, Mapping):
        group: Any = next((kind for kind in kinds if is_dataclass(kind)), None)
        return value if group is None else restored(group, value)
    is_tuple = isinstance(value, list) and any(get_origin(kind) is tuple for kind in kinds)
    return tuple(value) if is_tuple else value


@lru_cache
def _types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}
