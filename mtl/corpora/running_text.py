"""Running text as sentences, and the offsets of their words in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from threading import BoundedSemaphore
from typing import NamedTuple

from mtl.corpora.input_lines import CONTROL, Splitter
from mtl.tasks.sentence import Sentence

_AT_ONCE = BoundedSemaphore(4)
"""Admits the threads that may split at the same time: more are not faster, and rules take memory."""
_FREE: dict[str, list[Splitter]] = {}
"""The splitters that were made and that no thread is using, by language."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Offset(NamedTuple):
    """A stretch of a text, in characters from 0; `end` is exclusive."""

    start: int
    end: int


def splitter_for(language: str) -> Splitter:
    """The splitter for running text in a language: our rules for English (`en`), spaCy's for others.

    Control characters count as blanks. Raises `InputError` for a language that spaCy does not have, and if a
    package is missing.
    """
    splitter: Splitter
    if language == "en":
        from mtl.corpora.raw_text import sentences_of as splitter
    else:
        from mtl.corpora.other_languages import splitter_of

        splitter = splitter_of(language)
    return lambda text: splitter(CONTROL.sub(" ", text))


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


def offsets_of(text: str, sentences: Sequence[Sentence]) -> list[tuple[Offset, ...]]:
    """For each sentence, the offsets of its words in the text that it was split from.

    Raises `ValueError` unless the words spell the text, apart from white space and control characters.
    """
    placed, here = [], 0
    for sentence in sentences:
        offsets = []
        for word in sentence.words:
            start = text.find(word, here)
            if start < 0 or not CONTROL.sub(" ", text[here:start] + " ").isspace():
                raise ValueError(f"the text has no word {word!a} at character {here}")
            here = start + len(word)
            offsets.append(Offset(start, here))
        placed.append(tuple(offsets))
    return placed
