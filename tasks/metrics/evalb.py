"""Labelled brackets, scored as by the program EVALB with COLLINS.prm (Sekine and Collins 1997)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
from jaxtyping import Float, Int

from mtl.tasks.binarise import constituents
from mtl.tasks.metrics.metric import SummedCounts, annotated, f1, precision_recall_f1
from mtl.tasks.sentence import Sentence, Span

DELETED = frozenset({"TOP", "-NONE-", ",", ":", "``", "''", "."})
"""Words with these (gold) tags are left out, and constituents with these labels."""
EQUAL = {"PRT": "ADVP"}
"""Labels that count as another label."""


def scored_brackets(spans: Iterable[Span], scored_before: Sequence[int]) -> Counter[tuple[int, int, str]]:
    """The multiset of brackets that count: NP over NP over the same words is counted twice.

    `scored_before` has for each boundary the number of words left of it that are not deleted; constituents
    without such words do not count. Labels are cut before the first '-' or '='.
    """
    brackets = [(scored_before[start], scored_before[end], _scored_as(label)) for start, end, label in spans]
    return Counter([each for each in brackets if each[0] < each[1] and each[2] not in DELETED])


@lru_cache(maxsize=4096)
def _scored_as(label: str) -> str:
    bare = re.split("[-=]", label, maxsplit=1)[0]
    return EQUAL.get(bare, bare)


class BracketScores(SummedCounts):
    """Labelled precision, recall and F1 over all sentences, and the share of sentences without an error."""

    columns = 5

    def __init__(self, layer: str = "tree") -> None:
        super().__init__(layer)

    def compute(self) -> dict[str, float]:
        *brackets, exact, sentences = self.counts.tolist()
        return precision_recall_f1(*brackets) | {"exact": 100 * exact / max(sentences, 1)}

    def sentence_counts(
        self, predicted: Sequence[tuple[Span, ...]], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 5), dtype=np.int64)
        for number, guess, tree in annotated(self.layer, predicted, gold):
            scored = [leaf.label not in DELETED for leaf in tree.leaves()]
            scored_before = list(accumulate(scored, initial=0))
            if scored_before[-1] == 0:
                continue  # EVALB skips sentences of nothing but deleted words
            guessed = scored_brackets(guess, scored_before)
            true = scored_brackets(constituents(tree), scored_before)
            exact = guessed == true
            counts[number] = (guessed & true).total(), guessed.total(), true.total(), exact, 1
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return f1(counts)
