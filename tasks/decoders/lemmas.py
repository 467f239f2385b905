"""The classifier of words with scripts that make lemmas as its labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mtl.tasks.decoders.alternatives import Item
from mtl.tasks.decoders.classifier import WordClassifier
from mtl.tasks.lemma_scripts import shortest_form
from mtl.tasks.task import Labels


class LemmaDecoder(WordClassifier):
    """A script for every word.

    The decoder does not know the forms, and a script applies only to forms that are long enough. Therefore
    an annotation has a few scripts per word, by their scores.
    """

    fits: Tensor

    def __init__(self, hidden: int, labels: Labels, dropout: float) -> None:
        super().__init__(hidden, labels, dropout)
        shortest = torch.tensor([shortest_form(name) for name in labels.names])
        lengths = shortest.unique().flip(0)
        self.register_buffer("fits", shortest <= lengths[:, None], persistent=False)
        """Which scripts apply, for each length of forms from which on more of them do; the longest first."""

    def decode(
        self, scores: Float[Tensor, "batch word label"], mask: Bool[Tensor, "batch word"]
    ) -> list[tuple[Any, ...]]:
        """Per word the best script of all, then the best of those for shorter forms, and so on."""
        best = torch.stack([scores.masked_fill(~fits, -torch.inf).argmax(2) for fits in self.fits], 2)
        lengths, names = mask.sum(1).tolist(), self.labels.names
        return [
            tuple([tuple([names[index] for index in dict.fromkeys(word)]) for word in words[:length]])
            for words, length in zip(best.tolist(), lengths, strict=True)
        ]

    def alternatives(
        self,
        scores: Float[Tensor, "batch word label"],
        mask: Bool[Tensor, "batch word"],
        decoded: Sequence[tuple[Any, ...]],
        k: int,
    ) -> list[tuple[Item, ...]]:
        """All scripts of each word, whatever `k` is: which of them apply depends on its form."""
        return super().alternatives(scores, mask, decoded, len(self.labels))
