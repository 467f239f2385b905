"""Files of text: read line by line with the place of every fault, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from mtl.errors import InputError


def malformed(path: Path, line: int, what: str) -> InputError:
    """The error for a fault at one line of a file (counted from 1)."""
    return InputError(f"{path}:{line}: {what}")


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, broken at line feeds only (words may hold U+2028 and its like)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; give the path of a readable file") from error
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise malformed(path, line, f"not UTF-8 ({error.reason}); convert the file to UTF-8") from error
    return text.replace("\r\n", "\n").split("\n")


def write_atomic(path: Path, text: str) -> None:
    """Write a file so that other readers see the old content or the whole new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(text.encode("utf-8"))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
