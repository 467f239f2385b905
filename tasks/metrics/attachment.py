"""Attachment scores, counted as the CoNLL 2018 scorer counts them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from mtl.tasks.metrics.metric import SummedCounts, annotated, share
from mtl.tasks.sentence import Arcs, Sentence


class AttachmentScores(SummedCounts):
    """UAS and LAS as the CoNLL 2018 scorer counts them, or without words that are punctuation.

    `las` compares relations up to the first colon, as the scorer does; `las_subtypes` compares all of them.
    Without `punct`, words are left out by their form (`is_punctuation`), whatever their relation and
    whatever is predicted. Words that attach to them count.
    """

    columns = 4

    def __init__(self, layer: str = "arcs", punct: bool = True) -> None:
        super().__init__(layer)
        self.punct = punct

    def compute(self) -> dict[str, float]:
        labelled, words, attached, labelled_fully = self.counts.tolist()
        right = {"uas": attached, "las": labelled, "las_subtypes": labelled_fully}
        return {name: 100 * count / max(words, 1) for name, count in right.items()}

    def sentence_counts(
        self, predicted: Sequence[Arcs], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 4), dtype=np.int64)
        for number, guess, arcs in annotated(self.layer, predicted, gold):
            words = attached = labelled = labelled_fully = 0
            for word, head, relation, gold_head, gold_relation in zip(
                gold[number].words, guess.heads, guess.relations, arcs.heads, arcs.relations, strict=True
            ):
                if not self.punct and is_punctuation(word):
                    continue
                words += 1
                if head == gold_head:
                    attached += 1
                    labelled += relation.partition(":")[0] == gold_relation.partition(":")[0]
                    labelled_fully += relation == gold_relation
            counts[number] = labelled, words, attached, labelled_fully
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return share(counts)


def is_punctuation(word: str) -> bool:
    """Whether every character of a word is punctuation in Unicode (P*; `$`, `+` and `=` are symbols).

    The rule of supar (`supar.utils.fn.ispunct`) and of He and Choi's parser.
    """
    return all(unicodedata.category(character).startswith("P") for character in word)
