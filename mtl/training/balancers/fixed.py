"""Weights that the user gives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mtl.training.balancers.balancer import Balancer, Gram, PerTask, Present


class Fixed(Balancer):
    """The user's weights, in the order of the tasks; raises `ValueError` if one is negative or not finite."""

    gradients = "none"
    by_losses = False
    weights: Tensor

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
        if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
            raise ValueError(f"task weights {list(weights)}: use finite numbers, none below 0")
        # Not in checkpoints: they must not bring back weights that the user has since changed.
        self.register_buffer("weights", torch.tensor(list(weights), dtype=torch.float32), persistent=False)

    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        return torch.where(present, self.weights, 0).to(losses.dtype)
