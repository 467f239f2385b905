"""Running text as sentences whose words have their places in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from threading import BoundedSemaphore
from typing import NamedTuple

from mtl.corpora.input_lines import CONTROL, Splitter, text_splitter
from mtl.tasks.sentence import Sentence

_AT_ONCE = BoundedSemaphore(4)
"""Threads that split at the same time: more are no faster, and rules take memory."""
_FREE: dict[str, list[Splitter]] = {}
"""By language the splitters that were made and that no thread uses now."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Offset(NamedTuple):
    """A stretch of a text, in characters from 0; `end` is exclusive."""

    start: int
    end: int


def splitter_for(language: str) -> Splitter:
    """What splits running text in a language: our rules for English (`en`), spaCy's for others.

    Raises `InputError` for a language that spaCy does not have, and where a package is missing.
    """
    if language == "en":
        from mtl.corpora.raw_text import sentences_of

        return text_splitter(sentences_of)
    from mtl.corpora.other_languages import splitter_of

    return text_splitter(splitter_of(language))


def split(text: str, language: str) -> list[Sentence]:
    """The sentences of a text; up to four threads split at once, so that a long text keeps no other waiting.

    Raises `InputError` as `splitter_for` does, and `ValueError` for halves of surrogate pairs and where the
    rules give up.
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
    """Of each sentence the places of its words in the text that it was split from.

    The words spell the text but for white space and control characters; raises `ValueError` if not.
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
