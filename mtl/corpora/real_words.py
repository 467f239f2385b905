"""Checks that what was read as words is words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from mtl.corpora.formats.conll2003 import are_numbers
from mtl.corpora.merge import MASKS
from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence

_INDEXED = re.compile(r"[0-9]+=.")
"""A word after its number, as files of discontinuous trees have it."""


def with_words(path: str | Path, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    """The sentences that were read from a file, a folder or a pattern.

    Raises `InputError` after the last one if their words are the numbers of words, all have the same prefix
    or a number before them, are masked, repeat one word, or equal the tags.
    """
    prefixes: set[str] = set()
    masked: Counter[str] = Counter()
    words = longer = numbers = 0
    first: Sentence | None = None
    example = longest = Sentence(())
    alike = indexed = repeated = tagged = True
    for sentence in sentences:
        first = first or sentence
        alike = alike and sentence.words == first.words
        words += len(sentence)
        masked.update(word for word in sentence.words if word in MASKS)
        if len(prefixes) < 2:
            prefixes.update(word[: word.find(":") + 1] for word in sentence.words)
        longest = max(longest, sentence, key=len)
        if len(sentence) > 1:
            example = example if longer else sentence
            longer += 1
            numbers += are_numbers([sentence.words])
            indexed = indexed and all(map(_INDEXED.match, sentence.words))
            repeated = repeated and len(set(sentence.words)) == 1
            tagged = tagged and sentence.words in (sentence.tags, sentence.upos)
        yield sentence
    if 2 * numbers > longer:
        raise InputError(
            f"{path}: the words of most sentences are numbers one after the other, such as "
            f"{' '.join(longest.words[:3])}: does the first column number the words?"
        )
    if len(prefixes) == 1 and not alike and (prefix := prefixes.pop()):
        raise InputError(
            f"{path}: every word begins with '{prefix}', which names a language in WikiAnn: take it off"
        )
    if 2 * masked.total() > words:
        raise InputError(
            f"{path}: {masked.total():,} of {counted(words, 'word')} are '{masked.most_common(1)[0][0]}': "
            "the text was removed from these files, for its licence; restore it with their publisher's tool"
        )
    if longer < 2:
        return
    if indexed:
        raise InputError(
            f"{path}: every word begins with a number, as '{example.words[0]}': take the numbers off"
        )
    if repeated:
        what = f"every sentence repeats one word, such as '{example.words[0]}'"
    elif tagged:
        what = f"every word is its own tag, such as '{example.words[0]}'"
    else:
        return
    raise InputError(
        f"{path}: {what}: was the text removed from these files, or was a column without words read?"
    )
