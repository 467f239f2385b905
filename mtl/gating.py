"""What head gates cost in training."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mtl.gates import HeadGates


class GateLoss(nn.Module):
    """The L0 penalty with its warm-up, and the overlap penalty; added outside of the balanced losses."""

    def __init__(
        self, gates: HeadGates, penalty: float, overlap_penalty: float, warmup_updates: float
    ) -> None:
        super().__init__()
        self.gates = gates
        self.penalty, self.overlap_penalty, self.warmup_updates = penalty, overlap_penalty, warmup_updates

    def forward(self, update: int) -> Float[Tensor, ""]:
        """The cost of this update, in the unit of the losses."""
        share = min(1.0, (update + 1) / self.warmup_updates) if self.warmup_updates else 1.0
        cost = share * self.penalty * self.gates.penalty().sum()
        if self.overlap_penalty:
            cost = cost + self.overlap_penalty * self.gates.overlap()
        return torch.as_tensor(cost)
