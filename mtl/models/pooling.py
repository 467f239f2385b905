"""Word vectors from the vectors of their subwords."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mtl.models.subwords import Subwords

Pooling = Literal["mean", "first", "last"]


def pool(
    hidden: Float[Tensor, "row subword hidden"], subwords: Subwords, pooling: Pooling
) -> Float[Tensor, "batch word hidden"]:
    """One vector per word: the mean, the first or the last of its pieces' vectors; zeros without pieces."""
    sentences, width = subwords.sentences, subwords.width
    slot, nowhere = subwords.slot, sentences * width
    if pooling != "mean":
        # A word's pieces are adjacent in one row: keep only the position where its slot begins or ends.
        other = torch.full_like(slot[:, :1], nowhere)
        beside = (
            torch.cat([other, slot[:, :-1]], 1) if pooling == "first" else torch.cat([slot[:, 1:], other], 1)
        )
        slot = slot.masked_fill(slot == beside, nowhere)
    flat = slot.flatten()
    summed = hidden.new_zeros(nowhere + 1, hidden.shape[-1]).index_add(0, flat, hidden.flatten(0, 1))
    summed = summed[:-1]
    if pooling == "mean":
        # Not `bincount`, which on a GPU waits for the host.
        ones = torch.ones(flat.numel(), dtype=torch.float32, device=flat.device)
        pieces = ones.new_zeros(nowhere + 1).index_add(0, flat, ones)[:-1]
        summed = summed / pieces.clamp(min=1)[:, None].to(summed.dtype)
    return summed.view(sentences, width, -1)
