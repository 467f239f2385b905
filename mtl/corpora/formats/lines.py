"""Text files, read line by line, and errors that name the line of a fault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mtl.errors import InputError

_LONGEST = 240
_UTF32 = "UTF-32: convert it, for instance with iconv -f UTF-32 -t UTF-8"
_UTF16 = "UTF-16: convert it, for instance with iconv -f UTF-16 -t UTF-8"
_BEGINNINGS = {
    rb"\x1f\x8b": "compressed by gzip: unpack it",
    rb"BZh[1-9]1AY": "compressed by bzip2: unpack it",
    rb"\xfd7zXZ": "compressed by xz: unpack it",
    rb"\x28\xb5\x2f\xfd": "compressed by zstd: unpack it",
    rb"PK\x03\x04": "a zip file: unpack it (of a workbook, save a sheet as text)",
    rb"PAR1[\0-\x1f]": "a Parquet file: write its rows as text",
    rb"%PDF-[0-9]": "a PDF file: use the text itself",
    rb"\xff\xfe\0\0|\0\0\xfe\xff": _UTF32,
    rb"\xff\xfe|\xfe\xff": _UTF16,
}
"""What files with these beginnings are, and what to do: they are not text in UTF-8."""
_LOOKED_AT = 4096
"""Bytes at the beginning of a file that are looked at."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff]")
"""Characters that no text may hold: control characters that are no white space, and halves of others."""
BLANKS = " \t"
"""The white space that separates columns; a line with nothing else is blank. Words may contain all other."""
CARRIAGE_RETURN = "a carriage return within the line; write line feeds as line ends, and take others out"
"""The fault of a line that other programs take for two."""
_MARKS = re.compile("^\ufeff+", re.MULTILINE)
_MARKS_ALONE = re.compile("^\ufeff+[ \t]+[^ \t\r\n]", re.MULTILINE)


def malformed(path: Path, line: int, what: str) -> InputError:
    """The error for a fault in a line of a file (counted from 1), shortened and with unprintables escaped."""
    what = _UNPRINTABLE.sub(lambda match: ascii(match.group())[1:-1], what)
    if len(what) > _LONGEST:
        what = f"{what[: _LONGEST // 2]} … {what[-_LONGEST // 2 :]}"
    return InputError(f"{path}:{line}: {what}")


def name_of(path: Path, *, suffix: bool = False) -> str:
    """A file's name, with which ids of its sentences begin; characters that ids may not hold become `_`."""
    return _UNPRINTABLE.sub("_", path.name if suffix else path.stem)


def no_text(beginning: bytes) -> str | None:
    """What a file or stream with this beginning is, and what to do; `None`: it may be text in UTF-8."""
    for start, what in _BEGINNINGS.items():
        if re.match(start, beginning):
            return what
    beginning = beginning[:_LOOKED_AT]
    # In UTF-16, every second byte of ASCII text is zero.
    return _UTF16 if 3 * beginning.count(b"\0") > len(beginning) else None


def read_lines(path: Path, *, rows: bool = False) -> list[str]:
    """The lines of a UTF-8 file, as `lines_of` gives them."""
    with _readable(path):
        data = path.read_bytes()
    return lines_of(path, data, rows=rows)


def iterate_lines(path: Path) -> Iterator[str]:
    """The lines of `read_lines`, each read and decoded only when it is asked for."""
    with _readable(path):
        file = path.open("rb")
    with file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                _refuse_no_text(path, line)
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, number, error) from error
            yield _line(path, number, text.removesuffix("\n"))


def lines_of(path: Path, data: bytes, *, rows: bool = False) -> list[str]:
    """The lines of UTF-8 text, which is the content of the file.

    A line ends only at a line feed, with any carriage returns before it: words may contain U+2028 and similar
    characters. Byte order marks at the start of any line are left out, since concatenated files have them.
    Raises `InputError` for a carriage return within a line, which only some programs take for a line's end.
    With `rows`, lines are rows of columns. A mark that is the whole first column is then an error, too:
    without it, the next column would take its place.
    """
    _refuse_no_text(path, data[:_LOOKED_AT])
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, data.count(b"\n", 0, error.start) + 1, error) from error
    if "\ufeff" in text:
        if rows and (found := _MARKS_ALONE.search(text)):
            what = "a byte order mark where the row's first column should be; write that column"
            raise malformed(path, text.count("\n", 0, found.start()) + 1, what)
        text = _MARKS.sub("", text)
    if "\r" not in text:
        return text.split("\n")
    return [_line(path, number, line) for number, line in enumerate(text.split("\n"), start=1)]


def is_blank(line: str) -> bool:
    """Whether a line consists only of blanks and tabs."""
    return not line.strip(BLANKS)


def _line(path: Path, number: int, text: str) -> str:
    text = text.lstrip("\ufeff").rstrip("\r")
    if "\r" in text:
        raise malformed(path, number, CARRIAGE_RETURN)
    return text


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; use the path of a readable file") from error


def _refuse_no_text(path: Path, beginning: bytes) -> None:
    if what := no_text(beginning):
        raise InputError(f"{path}: {what}")


def _not_utf8(path: Path, line: int, error: UnicodeDecodeError) -> InputError:
    return malformed(path, line, f"not UTF-8 ({error.reason}); convert the file to UTF-8")
