"""Accuracy of labels of words or of sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from mtl.tasks.metrics.metric import SummedCounts, share
from mtl.tasks.sentence import Sentence


class Accuracy(SummedCounts):
    """Share of right labels; `layer` is the layer with one label, or with one label per word.

    With `label_of` there is no such layer: it gives the label of each word.
    """

    columns = 2

    def __init__(self, layer: str, label_of: Callable[[str], str] | None = None) -> None:
        super().__init__(layer)
        self.label_of = label_of

    def compute(self) -> dict[str, float]:
        correct, labels = self.counts.tolist()
        return {"accuracy": 100 * correct / max(labels, 1)}

    def sentence_counts(
        self, predicted: Sequence[str | tuple[str, ...]], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 2), dtype=np.int64)
        for row, guess, sentence in zip(counts, predicted, gold, strict=True):
            layer = sentence.layer(self.layer)
            if self.label_of is not None:
                layer = tuple(map(self.label_of, sentence.words))
            if layer is None:
                continue
            pairs = [(guess, layer)] if isinstance(layer, str) else zip(guess, layer, strict=True)
            right = [left == right for left, right in pairs]
            row[:] = sum(right), len(right)
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return share(counts)
