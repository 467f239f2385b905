"""Weights that even out the tasks' recent losses."""

from __future__ import annotations

import torch
from torch import Tensor

from mtl.training.balancers.balancer import Balancer, Gram, PerTask, Present

_SMALLEST_AVERAGE = 1e-8
"""Lower bound of an average loss, which is the divisor of a weight."""


class MovingAverage(Balancer):
    """Weight of task k: the sum of all tasks' recent average losses over that of k (He & Choi 2021).

    Averages are over the last `window` updates, this one included, in which the task was present. A task that
    was never present adds nothing to the sum.
    """

    gradients = "none"
    history: Tensor
    count: Tensor

    def __init__(self, tasks: int, window: int = 5) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window {window}: the moving average needs at least 1 update")
        self.register_buffer("history", torch.zeros(tasks, window))
        self.register_buffer("count", torch.zeros(tasks, dtype=torch.long))

    @torch.no_grad()
    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        window = self.history.shape[1]
        slots = torch.arange(window, device=self.history.device)
        written = present[:, None] & (slots == (self.count % window)[:, None])
        self.history.copy_(torch.where(written, losses[:, None].float(), self.history))
        self.count.add_(present)
        averages = self.history.sum(1) / self.count.clamp(1, window)
        weights = averages.sum() / averages.clamp(min=_SMALLEST_AVERAGE)
        return torch.where(present, weights, 0).to(losses.dtype)
