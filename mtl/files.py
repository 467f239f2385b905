"""Files that appear whole or not at all, and their hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = (path.with_name(f".{path.name}.{kind}.{os.getpid()}") for kind in ("new", "old"))
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, wholly or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, wholly or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def recover_folder(path: Path) -> None:
    """Put things right after a process was killed while `whole_folder` exchanged `path`."""
    if not path.parent.exists():
        return
    old = sorted(path.parent.glob(f".{path.name}.old.*"))
    if old and not path.exists():
        old.pop().rename(path)
    for leftover in [*old, *path.parent.glob(f".{path.name}.new.*")]:
        shutil.rmtree(leftover, ignore_errors=True)


def fingerprint(paths: Iterable[Path]) -> str:
    """One sha256 over the contents of files, in the order given (their names and places do not count)."""
    return hashlib.sha256("".join(sha256(path) for path in paths).encode()).hexdigest()


def sha256(path: Path) -> str:
    """The sha256 of a file's content, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
