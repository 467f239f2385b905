"""How many words of a corpus the encoder's vocabulary does not know."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mtl.models.batches import Example
from mtl.models.subwords import Tokens
from mtl.tasks.in_words import counted


def describe_unknown(corpus: Iterable[Example], unknown: int) -> str | None:
    """How many words have a piece that the vocabulary lacks, and the first of them; `None` without any.

    `unknown` is the id of the piece that stands for what the vocabulary lacks. Translations are not looked
    at.
    """
    words = lacking = 0
    first = ""
    for example in corpus:
        tokens = example.tokens
        if not isinstance(tokens, Tokens):
            continue
        words += len(tokens)
        if unknown in tokens.ids:
            found = np.unique(np.repeat(np.arange(len(tokens)), tokens.counts)[tokens.ids == unknown])
            lacking += len(found)
            first = first or example.sentence.words[found[0]]
    if not lacking:
        return None
    return (
        f"{lacking:,} of {counted(words, 'word')} ({lacking / words:.1%}) have pieces that the encoder's "
        f"vocabulary lacks (the first, {first!r})"
    )
