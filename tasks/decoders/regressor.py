"""Linear regression: a number for the sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from mtl.tasks.decoders.classifier import LinearDecoder
from mtl.tasks.decoders.decoder import StructureScore
from mtl.tasks.decoders.pooling import Kind, SentencePooling


class NumberTarget(NamedTuple):
    """The gold number of one sentence."""

    number: Float[np.ndarray, " 1"]


class Numbers(NamedTuple):
    """The gold numbers of a batch."""

    numbers: Float[Tensor, " batch"]


def number_targets(number: float) -> NumberTarget:
    """The number of one sentence as an array."""
    return NumberTarget(np.array([number], dtype=np.float32))


def collate_numbers(targets: Sequence[NumberTarget]) -> Numbers:
    """The numbers of a batch."""
    return Numbers(torch.from_numpy(np.concatenate([target.number for target in targets])))


class SentenceRegressor(LinearDecoder):
    """A number for the sentence, from one vector for all of its words; its loss is the squared error."""

    def __init__(self, hidden: int, dropout: float, pooling: Kind = "mean") -> None:
        super().__init__(hidden, 1, dropout)
        self.pooling = SentencePooling(hidden, pooling)
        self.reads_first = pooling == "first"

    def forward(
        self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, " batch"]:
        return self.scores(self.pooling(words, mask)).squeeze(1)

    def loss(
        self, scores: Float[Tensor, " batch"], targets: Numbers, mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, " batch"]:
        return functional.mse_loss(scores, targets.numbers.to(scores.dtype), reduction="none")

    def structure_score(
        self,
        scores: Float[Tensor, " batch"],
        targets: Numbers,
        mask: Bool[Tensor, "batch word"],
        label: int | None = None,
    ) -> StructureScore:
        """The number itself, which has no labels."""
        return StructureScore(scores, torch.ones_like(scores, dtype=torch.long))

    def decode(self, scores: Float[Tensor, " batch"], mask: Bool[Tensor, "batch word"]) -> list[float]:
        numbers: list[float] = scores.tolist()
        return numbers
