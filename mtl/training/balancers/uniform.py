"""The same weight for all tasks."""

from __future__ import annotations

from mtl.training.balancers.balancer import Balancer, Gram, PerTask, Present


class Uniform(Balancer):
    """Weight 1 for every task: the plain sum of the losses."""

    gradients = "none"
    by_losses = False

    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        return present.to(losses.dtype)
