"""Files of text, read line by line, and the place of every fault in them."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mtl.errors import InputError

_LONGEST = 240
_GZIP = b"\x1f\x8b"
"""How every file begins that gzip wrote."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
BLANKS = " \t"
"""What separates columns, and alone makes a line a blank one. All other white space may be part of a word."""
_MARKS = re.compile("^\ufeff+", re.MULTILINE)


def malformed(path: Path, line: int, what: str) -> InputError:
    """The error for a fault at one line of a file (counted from 1), long or unprintable quotes made short."""
    what = _UNPRINTABLE.sub(lambda match: ascii(match.group())[1:-1], what)
    if len(what) > _LONGEST:
        what = f"{what[: _LONGEST // 2]} … {what[-_LONGEST // 2 :]}"
    return InputError(f"{path}:{line}: {what}")


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable Python's cyclic garbage collector: sentences are millions of small objects without cycles.

    The collector would double the time that reading takes.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file: see `lines_of`."""
    with _readable(path):
        data = path.read_bytes()
    return lines_of(path, data)


def iterate_lines(path: Path) -> Iterator[str]:
    """The lines of `read_lines`, each read and decoded when it is asked for."""
    with _readable(path):
        file = path.open("rb")
    with file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, number, error) from error
            yield _line(path, number, text.removesuffix("\n"))


def lines_of(path: Path, data: bytes) -> list[str]:
    """The lines of UTF-8 text that the file holds.

    A line ends at a line feed, before which carriage returns belong to the end, and nowhere else: words may
    hold U+2028 and its like. Byte order marks at the start of any line (files put together have them) are
    left out. Raises `InputError` for a carriage return within a line: it ends a line for some programs only.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, data.count(b"\n", 0, error.start) + 1, error) from error
    if "\ufeff" in text:
        text = _MARKS.sub("", text)
    if "\r" not in text:
        return text.split("\n")
    return [_line(path, number, line) for number, line in enumerate(text.split("\n"), start=1)]


def is_blank(line: str) -> bool:
    """Whether a line holds nothing but blanks and tabs."""
    return not line.strip(BLANKS)


def _line(path: Path, number: int, text: str) -> str:
    text = text.lstrip("\ufeff").rstrip("\r")
    if "\r" in text:
        raise malformed(
            path,
            number,
            "a carriage return within the line; write line feeds as line ends, and take others out",
        )
    return text


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; give the path of a readable file") from error


def _not_utf8(path: Path, line: int, error: UnicodeDecodeError) -> InputError:
    if line == 1 and error.object.startswith(_GZIP):
        return InputError(f"{path}: compressed by gzip, which this format is not read from; unpack it")
    return malformed(path, line, f"not UTF-8 ({error.reason}); convert the file to UTF-8")
