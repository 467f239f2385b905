"""Random projections of what a layer reads, to compare clustering with: heads that learned nothing."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

DRAWS = 4
"""The number of random projections per layer, over which the score is averaged."""


def random_projections(
    layers: int, hidden: int, head_dim: int, draws: int = DRAWS, seed: int = 0
) -> Float[Tensor, "layer hidden draw head_dim"]:
    """Random matrices with normal entries of variance 1 / hidden, which keep lengths on average.

    The matrices of a layer depend only on the shape of the encoder and the seed. So all runs that start from
    one encoder are compared with the same projections.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(layers, hidden, draws, head_dim, generator=generator) / hidden**0.5
