"""Attachment scores, counted as the CoNLL 2018 scorer counts them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtl.tasks.metrics.metric import TaskMetric, share
from mtl.tasks.sentence import Arcs, Sentence


class AttachmentScores(TaskMetric):
    """UAS and LAS as the CoNLL 2018 scorer counts them, or without words that are punctuation.

    `las` compares relations up to the first colon, as the scorer does; `las_subtypes` compares all of them.
    Without `punct`, words are left out by their form (`is_punctuation`), whatever their relation and
    whatever is predicted. Words that attach to them count.
    """

    words: Tensor
    uas: Tensor
    las: Tensor
    las_subtypes: Tensor

    def __init__(self, layer: str = "arcs", punct: bool = True) -> None:
        super().__init__()
        self.layer = layer
        self.punct = punct
        for name in ("words", "uas", "las", "las_subtypes"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(
        self, predicted: Sequence[Arcs], gold: Sequence[Sentence], given: Sequence[Arcs] | None = None
    ) -> None:
        labelled, words, attached, labelled_fully = self.sentence_counts(predicted, gold).sum(0).tolist()
        self.words += words
        self.uas += attached
        self.las += labelled
        self.las_subtypes += labelled_fully

    def compute(self) -> dict[str, float]:
        words = max(int(self.words), 1)
        return {name: 100 * int(getattr(self, name)) / words for name in ("uas", "las", "las_subtypes")}

    def sentence_counts(
        self, predicted: Sequence[Arcs], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 4), dtype=np.int64)
        for row, guess, sentence in zip(counts, predicted, gold, strict=True):
            arcs = sentence.layer(self.layer)
            if arcs is None:
                continue
            words = attached = labelled = labelled_fully = 0
            for word, head, relation, gold_head, gold_relation in zip(
                sentence.words, guess.heads, guess.relations, arcs.heads, arcs.relations, strict=True
            ):
                if not self.punct and is_punctuation(word):
                    continue
                words += 1
                if head == gold_head:
                    attached += 1
                    labelled += relation.partition(":")[0] == gold_relation.partition(":")[0]
                    labelled_fully += relation == gold_relation
            row[:] = labelled, words, attached, labelled_fully
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return share(counts)


def is_punctuation(word: str) -> bool:
    """Whether every character of a word is punctuation in Unicode (P*; `$`, `+` and `=` are symbols).

    The rule of supar (`supar.utils.fn.ispunct`) and of He and Choi's parser.
    """
    return all(unicodedata.category(character).startswith("P") for character in word)
