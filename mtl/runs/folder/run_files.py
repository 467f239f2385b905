"""Read the files of a run: whole, and parsed once."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from mtl.errors import InputError

T = TypeVar("T")

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C is about ten times as fast."""
_SETTLED = 2.0
"""Seconds after which any later change of a file also changes its time, even if clocks are coarse."""
_KEYS = (
    "name", "runs", "overwrite", "seed", "tasks", "max_epochs", "patience", "evaluate_every", "pruning",
    "init_from", "corpus", "encoder", "batch", "optimizer", "balancer", "gates", "trainer", "wandb",
)  # fmt: skip
"""The keys that every version of `mtl train` has written."""
FIX = "put back an undamaged copy, or train again under another name"
START, END = "---\n", "...\n"


def while_unchanged(make: Callable[[Path], T]) -> Callable[[Path], T]:
    """A function of a file that is computed again only after the file has changed.

    A report reads every configuration a dozen times.
    """
    known = lru_cache(maxsize=4096)(lambda path, _: make(path))

    def of_file(path: Path) -> T:
        with contextlib.suppress(OSError):
            now = path.stat()
            if time.time() - max(now.st_mtime, now.st_ctime) > _SETTLED:
                return known(path, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns))
        return make(path)

    return of_file


def mapping_of(path: Path) -> dict[str, Any]:
    """The mapping in a file of a run; raises `InputError` with the file's name if it is damaged."""
    found: dict[str, Any] = pickle.loads(_packed(path))  # a copy, which the caller may change
    return found


@while_unchanged
def _packed(path: Path) -> bytes:
    text, language = whole_text(path), path.suffix[1:].upper()
    try:
        values = json.loads(text) if language == "JSON" else yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is no {language} ({' '.join(str(error).split())}): {FIX}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no keys: {FIX}")
    return pickle.dumps(values)


def whole_text(path: Path) -> str:
    """The text of a run's file; raises `InputError` if it cannot be read or lacks its end.

    YAML that was cut off between two lines is still YAML. So a whole configuration ends with the mark that
    `Run.create` puts there. Older ones have no marks: they begin with the key `name`, and have the keys that
    every version wrote.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text (byte {error.start}): {FIX}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): {FIX}") from error
    if not text.strip():
        raise InputError(f"{path} is empty: {FIX}")
    if path.name != "config.yaml":
        return text
    if text.startswith(START) and not text.endswith(END):
        lines = text.count("\n") + 1
        raise InputError(f"{path} was cut off (it ends in line {lines}, without the mark '...'): {FIX}")
    keys = re.findall(r"^(\w+):", text, re.MULTILINE)
    lacking = [key for key in _KEYS if key not in keys]
    if lacking and keys[:1] == ["name"]:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise InputError(f"{path} is incomplete (it lacks {', '.join(lacking[:3])}{more}): {FIX}")
    return text
