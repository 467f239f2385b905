"""All tasks alike."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from mtl.training.balancers.balancer import Balancer


class Uniform(Balancer):
    """Weight 1 for every task: the plain sum of the losses."""

    gradients = "none"
    by_losses = False

    def forward(
        self,
        losses: Float[Tensor, " task"],
        gram: Float[Tensor, "task task"] | None,
        present: Bool[Tensor, " task"],
    ) -> Float[Tensor, " task"]:
        return present.to(losses.dtype)
