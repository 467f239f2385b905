"""What every balancer offers: losses in, weights out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

PerTask = Float[Tensor, " task"]
Present = Bool[Tensor, " task"]
Gram = Float[Tensor, "task task"]


class Balancer(nn.Module, ABC):
    """The weights of the tasks in one step; all state is in buffers and parameters, so checkpoints keep it.

    Tasks that had nothing to learn in a step are not `present`: their entries of `losses` and `gram` (NaN
    too) are ignored, their weight is 0, and the balancer's state for them is unchanged. Before adding up,
    replace their losses by 0 (0 x NaN is NaN). All ranks must pass the same losses, Gram matrix and
    `present`, those of the whole update, and the same state of the random generator; otherwise the weights
    drift apart. An update's losses are those of the batches of all ranks and of all batches accumulated.
    """

    by_losses: ClassVar[bool] = True
    """Whether weights depend on the losses or their gradients, and so are unknown before the update's last
    batch; otherwise `forward` changes no state and ignores `losses` and `gram`."""

    gradients: ClassVar[Literal["none", "last_layer", "encoder"]]
    """The shared parameters in which the tasks' gradients g_i are needed, as `gram`: G_ij = g_i . g_j."""

    @abstractmethod
    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        """The weights of this step; updates the balancer's state, so call it once per step."""

    def regulariser(self, present: Present) -> Float[Tensor, ""]:
        """The term added to the weighted losses to train the balancer's own parameters, in their unit."""
        return torch.zeros((), device=present.device)
