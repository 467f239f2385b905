"""Files of text, read line by line, and the place of every fault in them."""

from __future__ import annotations

from pathlib import Path

from mtl.errors import InputError

_LONGEST_QUOTE = 60


def malformed(path: Path, line: int, what: str) -> InputError:
    """The error for a fault at one line of a file (counted from 1)."""
    return InputError(f"{path}:{line}: {what}")


def shown(value: object) -> str:
    """A value of a file as a message quotes it: in quotes, printable, and cut where it is long."""
    text = ascii(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


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
