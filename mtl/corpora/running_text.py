"""Running text as sentences whose words have their places in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import NamedTuple

from mtl.corpora.input_lines import CONTROL, Splitter, text_splitter
from mtl.tasks.sentence import Sentence

_LOCK = Lock()
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
    """The sentences of a text; the rules of a language are read once, and used by one thread at a time.

    Raises `InputError` as `splitter_for` does, and `ValueError` for halves of surrogate pairs and where the
    rules give up.
    """
    if half := _SURROGATE.search(text):
        raise ValueError(f"character {half.start()} is half of a surrogate pair, {half[0]!a}; take it out")
    with _LOCK:
        return _kept(language)(text)


_kept = cache(splitter_for)


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
