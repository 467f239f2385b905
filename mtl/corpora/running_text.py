"""Running text and lines of a stream as sentences."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from pkgutil import resolve_name
from threading import BoundedSemaphore
from typing import NamedTuple

from mtl.corpora.annotated_text import Offset, offsets_of
from mtl.corpora.formats.lines import BYTE_ORDER_MARKS, CARRIAGE_RETURN, fault, no_text
from mtl.errors import InputError
from mtl.features import added
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import MadeUpId, Sentence

Splitter = Callable[[str], list[Sentence]]
"""Splits a text into sentences; raises `ValueError` with the reason if it cannot."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_AT_ONCE = BoundedSemaphore(4)
"""Admits the threads that may split at the same time: more are not faster, and rules take memory."""
_FREE: dict[str, list[Splitter]] = {}
"""The splitters that were made and that no thread is using, by language."""
_BETWEEN_PARAGRAPHS = re.compile(
    r"(?>\r\n|[\n\r\x85\u2028])(?:[^\S\n\r\x85\u2028\u2029]|[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f])*+"
    r"[\n\r\x85\u2028]|\u2029"
)
"""A line's end with a blank line after it, or a paragraph separator."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def splitter_for(language: str) -> Splitter:
    """The splitter for running text in a language: our rules for English (`en`), a feature's for others.

    A sentence ends at the latest before a blank line or a paragraph separator (U+2029). Control characters
    count as blanks, and byte order marks at the start of a line are left out. Raises `InputError` for a
    language that there are no rules for, and if a package is missing.
    """
    splitter: Splitter
    if language == "en":
        from mtl.corpora.raw_text import sentences_of as splitter
    else:
        splitter = _of_features(language)
    return lambda text: [
        sentence
        for paragraph in _BETWEEN_PARAGRAPHS.split(BYTE_ORDER_MARKS.sub("", text))
        if (plain := _CONTROL.sub(" ", paragraph)).strip()
        for sentence in splitter(plain)
    ]


def _of_features(language: str) -> Splitter:
    for splitter_of in added(lambda feature: feature.splitters).values():
        splitter: Splitter = resolve_name(splitter_of)(language)
        return splitter
    raise InputError(
        f"language={language}: no such language (en is the only one): split the words yourself "
        "(--input=tokens)"
    )


def split(text: str, language: str) -> list[Sentence]:
    """The sentences of a text; up to four threads split at once, so that a long text does not delay others.

    Raises `InputError` as `splitter_for` does, and `ValueError` for halves of surrogate pairs and for text
    that the rules cannot split.
    """
    if half := _SURROGATE.search(text):
        raise ValueError(f"character {half.start()} is half of a surrogate pair, {half[0]!a}; take it out")
    with _AT_ONCE:
        try:
            splitter = _FREE[language].pop()
        except LookupError:
            splitter = splitter_for(language)
        try:
            return splitter(text)
        finally:
            _FREE.setdefault(language, []).append(splitter)


_BLOCK = 1 << 16
"""Bytes that are read at once: as many as a pipe holds."""
_MOST = 512
"""Maximum number of lines given at once: enough for full batches, few enough for quick answers."""
_BLANKS = re.compile(r"[ \t]+")
_NOT_LATIN = re.compile(r"[^\W\d_\u0000-\u024f\u1e00-\u1eff]")
_LETTER = re.compile(r"[^\W\d_]")
_ANNOTATED = {
    "JSON lines": re.compile(rb"\{.*\"(words|tokens|text)\"[ ]*:"),
    "CoNLL-U": re.compile(rb"# ?(sent_id|newdoc|newpar|global.columns|text =)|1\t[^\t]*(\t[^\t]*){8}"),
    "a table of words": re.compile(rb"-DOCSTART-[ \t]|#begin document "),
    "bracket notation": re.compile(rb"\( ?\([A-Z]|\((TOP|ROOT|S1|S)? ?\([A-Z]+ "),
}
"""The beginnings of files that hold more than text, by format."""
EMPTY = "an empty line"
"""Why an empty line has no words: the only reason that is not an error."""


class Record(NamedTuple):
    """A sentence to annotate. If `skipped` gives a reason, it is not annotated, and may have no words."""

    sentence: Sentence
    skipped: str | None = None
    offsets: tuple[Offset, ...] | None = None
    """The places of its words in the line."""


def standard_input() -> BufferedIOBase:
    """The bytes of standard input; raises `InputError` if it is closed."""
    if sys.stdin is None:
        raise InputError("standard input is closed: give text in a pipe or a file")
    assert isinstance(sys.stdin.buffer, BufferedIOBase)
    return sys.stdin.buffer


def lines_as_they_come(stream: BufferedIOBase) -> Iterator[list[bytes]]:
    """The lines of a stream, without line feeds, in lists of at most 512.

    A list holds the lines that have arrived, so that someone who writes one line gets an answer to it before
    writing the next.
    """
    # A thread that waits in a buffered stream holds its lock, over which Python aborts at its end.
    read = stream.raw.read if isinstance(stream, BufferedReader) else stream.read1
    begun: list[bytes] = []
    while block := read(_BLOCK):
        *whole, rest = block.split(b"\n")
        if whole:
            whole[0] = b"".join([*begun, whole[0]])
            begun = []
        for start in range(0, len(whole), _MOST):
            yield whole[start : start + _MOST]
        if rest:
            begun.append(rest)
    if begun:
        yield [b"".join(begun)]


def lines_in(file: Path) -> int | None:
    """The number of lines of a file; `None` if it is a pipe, which can be read only once."""
    if not file.is_file():
        return None
    count, block = 0, b"\n"
    with file.open("rb") as stream:
        while more := stream.read(_BLOCK):
            count, block = count + more.count(b"\n"), more
    return count + (not block.endswith(b"\n"))


def line_text(line: bytes) -> str:
    """A line as text, without its end.

    Raises `ValueError` for what is not UTF-8, and for a carriage return within the line, which only some
    programs take for a line's end.
    """
    if (b"\0" in line or not line.isascii()) and (what := no_text(line)):
        raise ValueError(f"it is not UTF-8 but {what}")
    try:
        text = line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"not UTF-8 ({error.reason}); convert it, for instance with iconv -f LATIN1 -t UTF-8"
        ) from error
    if "\r" in text:
        raise ValueError(CARRIAGE_RETURN)
    return text


def records_of(number: int, line: bytes, splitter: Splitter, max_words: int, where: str) -> list[Record]:
    """The records of an input line, at least one: its sentences, or the reason why it has none.

    The id is the number of the line (from 1), or `LINE.SENTENCE` if the line has several sentences. `where`
    names the stream in places.
    """
    named = Sentence((), id=MadeUpId(number), place=f"{where}, line {number}")
    try:
        text = line_text(line)
        sentences = splitter(BYTE_ORDER_MARKS.sub("", text))
    except ValueError as error:
        return [Record(named, str(error))]
    if not sentences:
        return [Record(named, EMPTY)]
    if (odd := next(filter(None, map(fault, sentences)), None)) is not None:
        return [Record(named, odd.what)]
    records = []
    each = zip(sentences, offsets_of(text, sentences), strict=True)
    for position, (sentence, offsets) in enumerate(each, start=1):
        name = named.id if len(sentences) == 1 else MadeUpId(f"{named.id}.{position}")
        sentence = replace(sentence, id=name, place=named.place)
        records.append(Record(sentence, _too_long(len(sentence), max_words), offsets))
    return records


def _too_long(words: int, max_words: int) -> str | None:
    if words <= max_words:
        return None
    return (
        f"{counted(words, 'word')}, and decoders are given at most {max_words:,}: split it, or raise "
        "--max_words (memory grows with its square, time with its cube)"
    )


def tokens(text: str) -> list[Sentence]:
    """One sentence, with words separated by blanks and tabs; other white space is part of a word."""
    words = _words(text)
    return [Sentence(words)] if words else []


def sentence_pairs(text: str) -> list[Sentence]:
    """A pair of sentences separated by one tab, with words separated by blanks."""
    parts = [_words(part) for part in text.split("\t")]
    if not any(parts):
        return []
    if len(parts) != 2 or not all(parts):
        raise ValueError(
            f"a pair is two sentences separated by one tab; here are {counted(len(parts) - 1, 'tab')} and "
            f"{counted(sum(map(bool, parts)), 'sentence')}"
        )
    first, second = parts
    return [Sentence((*first, *second), second=len(first))]


def is_annotated(line: bytes) -> str | None:
    """The annotated format of a file with this first line; `None`: it may be text."""
    line = line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r")
    return next((name for name, beginning in _ANNOTATED.items() if beginning.match(line)), None)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in _BLANKS.split(text) if word)


def is_mostly_of_another_script(text: str) -> bool:
    """Whether more than half of the letters are not Latin, so that rules for English cannot apply."""
    return not text.isascii() and 2 * len(_NOT_LATIN.findall(text)) > len(_LETTER.findall(text))
