"""Accuracy of lemmas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from mtl.tasks.lemma_lexicon import RankedScripts
from mtl.tasks.lemma_scripts import UNSPECIFIED
from mtl.tasks.metrics.accuracy import Accuracy
from mtl.tasks.sentence import Sentence


class LemmaAccuracy(Accuracy):
    """Share of words with the right lemma; predictions are `RankedScripts`.

    Where the gold is `_`, any lemma is right, as for the evaluator of Universal Dependencies.
    """

    def sentence_counts(
        self, predicted: Sequence[Any], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        return super().sentence_counts(list(map(self._lemmas, predicted, gold)), gold)

    def _lemmas(self, scripts: RankedScripts, gold: Sentence) -> tuple[str, ...]:
        lemmas = scripts.lemmas(gold.words)
        true = gold.layer(self.layer) or lemmas
        return tuple(
            UNSPECIFIED if of_gold == UNSPECIFIED else lemma
            for lemma, of_gold in zip(lemmas, true, strict=True)
        )
