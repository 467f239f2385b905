"""A classifier of words whose labels are scripts that make lemmas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mtl.tasks.decoders.alternatives import Item
from mtl.tasks.decoders.classifier import WordClassifier
from mtl.tasks.lemma_lexicon import RANKED, RankedScripts, split_labels
from mtl.tasks.lemma_scripts import shortest_form
from mtl.tasks.task import Labels


class LemmaDecoder(WordClassifier):
    """A script for every word.

    The decoder does not know the forms. But a script applies only to forms that are long enough, and a form
    that occurs in training gets one of its lemmas there. Therefore an annotation has the lexicon and, for
    each word, several scripts in the order of their scores.
    """

    fits: Tensor

    def __init__(self, hidden: int, labels: Labels, dropout: float) -> None:
        scripts, self.lexicon = split_labels(labels)
        super().__init__(hidden, scripts, dropout)
        shortest = torch.tensor([shortest_form(name) for name in scripts.names])
        lengths = shortest.unique().flip(0)
        self.register_buffer("fits", shortest <= lengths[:, None], persistent=False)
        """Which scripts apply to forms of each length that makes a difference, the longest first."""

    def decode(
        self, scores: Float[Tensor, "batch word label"], mask: Bool[Tensor, "batch word"]
    ) -> list[RankedScripts]:
        """Per word the best scripts of all, then the best script for shorter forms, and so on."""
        best = scores.topk(min(RANKED, len(self.labels)), 2).indices
        if len(self.fits) > 1:
            fitting = [scores.masked_fill(~fits, -torch.inf).argmax(2) for fits in self.fits[1:]]
            best = torch.cat([best, torch.stack(fitting, 2)], 2)
        lengths, names = mask.sum(1).tolist(), self.labels.names
        return [
            RankedScripts(
                tuple([tuple([names[index] for index in dict.fromkeys(word)]) for word in words[:length]]),
                self.lexicon,
            )
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
