"""From the vectors of words to one for the sentence."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

Kind = Literal["mean", "first", "attention"]


class SentencePooling(nn.Module):
    """The mean of the word vectors, the first vector ([CLS], where it is put first), or attention over words.

    Attention has one learned query, zero at first, so that it starts as the mean.
    """

    def __init__(self, hidden: int, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.query = nn.Parameter(torch.zeros(hidden)) if kind == "attention" else None

    def forward(
        self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, "batch hidden"]:
        if self.kind == "first":
            return words[:, 0]
        words = words.masked_fill(~mask[:, :, None], 0.0)
        if self.query is None:
            return words.sum(1) / mask.sum(1, keepdim=True)
        weights = (words @ self.query).masked_fill(~mask, -torch.inf).softmax(1)
        return torch.einsum("bw,bwh->bh", weights, words)
