"""Learned 0/1 masks over attention heads: hard concrete gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

OPEN = 1e-3
"""A head counts as open where its evaluation gate is above this."""


class HeadGates(nn.Module):
    """One mask per name over the same heads, a gate z from each log alpha a (Louizos et al. 2018, eq. 10-12).

    s = sigmoid((log u - log(1 - u) + a) / temperature), z = clip(s (r - l) + l, 0, 1), `stretch` = (l, r).
    With one mask all tasks share it; with as many as tasks each has its own. All is computed in float32,
    under autocast, too.

    `init_mean`, `init_std`: log alphas start from this normal distribution. The default starts evaluation
    gates at 0.957 (open, and near enough to 1 that a trained encoder is not upset) and yet below the point
    (2.398) from which on evaluation gates are clipped to 1 and `overlap` has no gradient; 0 is what He & Choi
    start around: gates of 0.5.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        masks: Sequence[str] = ("shared",),
        temperature: float = 0.33,
        stretch: Sequence[float] = (-0.1, 1.1),
        init_mean: float = 2.0,
        init_std: float = 0.01,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        low, high = stretch
        if not low < 0 < 1 < high:
            raise ValueError(f"stretch {stretch}: give an interval that holds 0 and 1 inside")
        if not temperature > 0:
            raise ValueError(f"temperature {temperature}: give a number above 0")
        self.masks = tuple(masks)
        self.temperature = temperature
        self.stretch = (low, high)
        self.eps = eps
        self.log_alpha = nn.Parameter(torch.empty(len(self.masks), layers, heads))
        nn.init.normal_(self.log_alpha, init_mean, init_std)

    def configuration(self) -> dict[str, Any]:
        """The constructor's arguments, but for the initial values."""
        _, layers, heads = self.log_alpha.shape
        return {
            "layers": layers,
            "heads": heads,
            "masks": list(self.masks),
            "temperature": self.temperature,
            "stretch": list(self.stretch),
            "eps": self.eps,
        }

    @property
    def closing_point(self) -> float:
        """The log alpha at and below which a head counts as closed."""
        low, high = self.stretch
        share = (OPEN - low) / (high - low)
        return math.log(share / (1 - share))

    def forward(self) -> Float[Tensor, "mask layer head"]:
        """Gates: in training one sample per head (draw once per step), else those of `gate`."""
        if not self.training:
            return self.gate()
        log_alpha = self.log_alpha.float()
        u = torch.empty_like(log_alpha, requires_grad=False).uniform_(self.eps, 1 - self.eps)
        return self._clip(torch.sigmoid((torch.logit(u) + log_alpha) / self.temperature))

    def gate(self) -> Float[Tensor, "mask layer head"]:
        """The evaluation gates: neither sampled nor rounded, and without the temperature."""
        return self._clip(torch.sigmoid(self.log_alpha.float()))

    def open(self) -> Bool[Tensor, "mask layer head"]:
        """Which heads count as open. Their number is not `expected_l0`: see there."""
        return self.gate() > OPEN

    def probability_open(self) -> Float[Tensor, "mask layer head"]:
        """P(z > 0) of a sampled gate; still 0.17 for a head at the closing point."""
        low, high = self.stretch
        return torch.sigmoid(self.log_alpha.float() - self.temperature * math.log(-low / high))

    def expected_l0(self) -> Float[Tensor, " mask"]:
        """The expected number of sampled gates that are not 0."""
        return self.probability_open().sum((1, 2))

    def penalty(self) -> Float[Tensor, " mask"]:
        """The expected number of gates that are not 0 over the number of layers (He & Choi 2021)."""
        return self.expected_l0() / self.log_alpha.shape[1]

    def overlap(self) -> Float[Tensor, " mask"]:
        """Per mask t: the sum over the other masks u of z_t * z_u, evaluation gates, z_u held constant.

        The sum over t has each pair of masks twice, with each side held constant once.
        """
        gate = self.gate()
        held = gate.detach()
        return (gate * (held.sum(0) - held)).sum((1, 2))

    def _clip(self, share: Float[Tensor, "mask layer head"]) -> Float[Tensor, "mask layer head"]:
        low, high = self.stretch
        return torch.clamp(share * (high - low) + low, 0, 1)
