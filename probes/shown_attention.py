"""The attention of one head on one sentence, and the arcs of a relation in it, hit and missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mtl.tasks.sentence import Sentence


class GoldArc(NamedTuple):
    """Words `start` to `end` (from 0, without `end`) and the word that they depend on; -1 is the root."""

    start: int
    end: int
    anchor: int
    label: str
    hit: bool
    """Whether the head connects the two, in either direction."""


@dataclass(frozen=True, eq=False)
class ShownAttention:
    """The attention of a head on a sentence, at word level."""

    sentence: Sentence
    head: str
    """The name of the head."""
    special: tuple[str | None, str | None]
    """The first and the final special token; `None` where the model has none."""
    weights: Float[np.ndarray, "query column"]
    """From the first special token and each word (queries) to the first special token, each word and the
    final special token (columns), from 0 to 1. It is 0 for special tokens that do not exist, and for words
    in other windows of a long sentence."""
    gold: tuple[GoldArc, ...] = ()
    root: bool = False
    """Whether the first special token, as the root, competes with the words for the most attended one."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The texts of the columns of `weights`; empty for a special token that does not exist."""
        return self.special[0] or "", *self.sentence.words, self.special[1] or ""

    def most(self, query: int) -> int:
        """The column that a query attends to most, of those that compete; ties go to the first."""
        first = 0 if self.root and self.special[0] else 1
        return first + int(self.weights[query, first:-1].argmax())

    def said_of_gold(self, word: int) -> str:
        """The arcs of the relation that end at a word (from 0), and whether they are hit; empty for none."""
        words = self.sentence.words
        return ", ".join(
            f"{arc.label} of {words[arc.anchor] if arc.anchor >= 0 else 'the root'}: "
            f"{'hit' if arc.hit else 'missed'}"
            for arc in self.gold
            if arc.start == word
        )
