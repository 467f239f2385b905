"""What every balancer offers: losses in, weights out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


class Balancer(nn.Module, ABC):
    """The weights of the tasks in one step; all state is in buffers and parameters, so checkpoints keep it.

    Tasks that had nothing to learn in a step are not `present`: whatever stands in their places of `losses`
    and `gram` (NaN too) is ignored, their weight is 0 and what is remembered of them stays. To add up, put 0
    instead of their losses first (0 x NaN is NaN). On several ranks all must hand in the same losses,
    Gram matrix and `present`, averaged over ranks, or the weights drift apart.
    """

    gradients: ClassVar[Literal["none", "last_layer", "encoder"]]
    """Of which shared parameters the tasks' gradients g_i are needed, as `gram`: G_ij = g_i . g_j."""

    @abstractmethod
    def forward(
        self,
        losses: Float[Tensor, " task"],
        gram: Float[Tensor, "task task"] | None,
        present: Bool[Tensor, " task"],
    ) -> Float[Tensor, " task"]:
        """Weights of this step, and what is remembered brought up to date; call once per step."""

    def regulariser(self, present: Bool[Tensor, " task"]) -> Float[Tensor, ""]:
        """What is added to the weighted sum of the losses to train the balancer's own parameters, in nats."""
        return torch.zeros((), device=present.device)
