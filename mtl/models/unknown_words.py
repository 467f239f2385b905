"""Count the words of a corpus that the encoder's vocabulary does not know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from mtl.models.batches import Example
from mtl.models.subwords import Tokens
from mtl.tasks.in_words import counted


class Unknown(NamedTuple):
    """How many words a corpus has, how many of them have a piece that the vocabulary lacks, and the first."""

    words: int
    lacking: int
    first: str

    def and_(self, later: Unknown) -> Unknown:
        """The counts of this part of a corpus and the part that follows, together."""
        first = self.first if self.lacking else later.first
        return Unknown(self.words + later.words, self.lacking + later.lacking, first)

    def described(self) -> str | None:
        """The counts in a line; `None` if the vocabulary lacks nothing."""
        if not self.lacking:
            return None
        return (
            f"{self.lacking:,} of {counted(self.words, 'word')} ({self.lacking / self.words:.1%}) have "
            f"pieces that the encoder's vocabulary lacks (the first, {self.first!r})"
        )


def count_unknown(corpus: Iterable[Example], unknown: int) -> Unknown:
    """Count words with a piece that the vocabulary lacks; translations are skipped.

    `unknown` is the id that stands for what the vocabulary lacks (`SubwordTokenizer.unknown`).
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
            first = first if lacking else example.sentence.words[found[0]]
            lacking += len(found)
    return Unknown(words, lacking, first)
