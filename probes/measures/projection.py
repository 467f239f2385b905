"""Random projections of what a layer reads: heads that learned nothing, to compare clustering with."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

DRAWS = 4
"""Random projections per layer, over which their score is averaged."""


def random_projections(
    layers: int, hidden: int, head_dim: int, draws: int = DRAWS, seed: int = 0
) -> Float[Tensor, "layer hidden draw head_dim"]:
    """Normal entries of variance 1 / hidden, so that lengths are kept on average.

    A layer's matrices follow from the shape of the encoder and the seed alone, so that all runs that start
    from one encoder are compared with the same projections.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(layers, hidden, draws, head_dim, generator=generator) / hidden**0.5
