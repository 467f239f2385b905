"""The interface of balancers: losses in, weights out."""

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
    """Gives the weights of the tasks in an update; all state is in buffers and parameters, for checkpoints.

    Tasks without annotation in an update are not `present`: their entries of `losses` and `gram`, which may
    be NaN, are ignored, their weight is 0, and the balancer's state for them does not change. Before adding
    up, replace their losses by 0, since 0 times NaN is NaN. All ranks must pass the same losses, Gram matrix
    and `present`, those of the whole update (all ranks, all accumulated batches), with random generators in
    the same state; otherwise their weights drift apart.
    """

    by_losses: ClassVar[bool] = True
    """Whether weights depend on the losses or their gradients, and so are unknown before the last batch of an
    update. If not, `forward` changes no state and ignores `losses` and `gram`."""

    gradients: ClassVar[Literal["none", "last_layer", "encoder"]]
    """The shared parameters for which `gram` is needed: G_ij = g_i . g_j, with g_i the gradient of task i."""

    @abstractmethod
    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        """The weights of this update; changes the balancer's state, so call it once per update."""

    def regulariser(self, present: Present) -> Float[Tensor, ""]:
        """The term added to the weighted losses to train the balancer's own parameters, in their unit."""
        return torch.zeros((), device=present.device)
