"""Accuracy of lemmas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from mtl.tasks.lemma_scripts import UNSPECIFIED, lemma_of
from mtl.tasks.metrics.accuracy import Accuracy
from mtl.tasks.sentence import Sentence


class LemmaAccuracy(Accuracy):
    """Share of words with the right lemma; predictions are scripts by their scores, per word.

    Where the gold is `_`, any lemma is right, as for the evaluator of Universal Dependencies.
    """

    def sentence_counts(
        self, predicted: Sequence[Any], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        return super().sentence_counts(list(map(self._lemmas, predicted, gold)), gold)

    def _lemmas(self, scripts: Sequence[Sequence[str]], gold: Sentence) -> tuple[str, ...]:
        lemmas = tuple(map(lemma_of, gold.words, scripts))
        true = gold.layer(self.layer) or lemmas
        return tuple(
            UNSPECIFIED if of_gold == UNSPECIFIED else lemma
            for lemma, of_gold in zip(lemmas, true, strict=True)
        )
