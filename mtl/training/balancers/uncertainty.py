"""Weights learned as the tasks' homoscedastic uncertainty."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mtl.training.balancers.balancer import Balancer, Gram, PerTask, Present


class Uncertainty(Balancer):
    """Each task's loss becomes L / (2 e^s) + s / 2, s = log sigma^2 learned (Kendall et al. 2018).

    At the optimum e^s is the task's mean loss. The weights carry the gradient of s.
    """

    gradients = "none"
    by_losses = False

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(tasks))

    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        return torch.where(present, 0.5 * torch.exp(-self.log_variance), 0).to(losses.dtype)

    def regulariser(self, present: Present) -> Float[Tensor, ""]:
        # Only for present tasks: without a loss, s / 2 alone would push s down.
        return torch.where(present, 0.5 * self.log_variance, 0).sum()
