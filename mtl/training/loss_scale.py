"""The scale of losses whose gradients are computed in float16."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class LossScale(nn.Module):
    """A factor of the loss that keeps small gradients in the range of float16.

    Gradients are divided by it before anything reads them (Micikevicius et al. 2018, section 3.2). It follows
    the rule of `torch.amp.GradScaler`: an update whose gradients overflow is not made, and the factor is
    halved; after `interval` updates in a row that were made, it is doubled. It does not go below 1, where an
    overflow is not of its making. The state is in buffers, as it is needed to resume.

    Args:
        factor: the first factor.
        interval: updates until it is doubled.
    """

    factor: Tensor
    made: Tensor

    def __init__(self, factor: float = 2.0**16, interval: int = 2000) -> None:
        super().__init__()
        self.interval = interval
        self.register_buffer("factor", torch.tensor(factor))
        self.register_buffer("made", torch.tensor(0))

    def forward(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The loss times the factor."""
        return loss * self.factor

    def without_overflows(self, norms: Float[Tensor, " norm"]) -> Float[Tensor, " norm"]:
        """Norms of gradients, with 0 for those that may have overflowed because of the factor."""
        return torch.where(norms.isfinite() | (self.factor <= 1), norms, 0.0)

    def follow(self, overflow: Tensor) -> None:
        """Set the factor for the next update; `overflow` is not 0 if this one is not made."""
        grows = self.made + 1 == self.interval
        higher = torch.where(grows, 2 * self.factor, self.factor)
        self.factor.copy_(torch.where(overflow != 0, (self.factor / 2).clamp(min=1.0), higher))
        self.made.copy_(torch.where((overflow != 0) | grows, 0, self.made + 1))
