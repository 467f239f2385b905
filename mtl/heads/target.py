"""Ending a run with a chosen number of open heads."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mtl.errors import InputError
from mtl.heads.gates import HeadGates

_CLOSED = -20.0
"""Log alpha of a head closed for good: sampled gates are 0, too (all but 5 in 10^9)."""
_KEPT = 0.0
"""Least log alpha of a head kept for good: one that was closed starts again from a gate of 0.5."""
_UNIT = 0.1
"""Up to about here the multipliers rise linearly, beyond it by a factor."""


def heads_wanted(target: int | float, heads: int) -> int:
    """A target as a number of heads: a share in (0, 1] of `heads`, or a whole number above 1."""
    if 0 < target <= 1:
        wanted = round(target * heads)
        if wanted < 1:
            raise InputError(f"target {target}: less than one of {heads} heads; give {1 / heads:.4f} or more")
        return wanted
    if not target > 0:
        raise InputError(f"target {target}: give a share of the heads in (0, 1] or a number of heads above 1")
    if target > heads:
        raise InputError(f"target {target:g}: there are only {heads} heads")
    if target != int(target):
        raise InputError(f"target {target}: a number of heads must be whole (a share is in (0, 1])")
    return int(target)


class HeadTarget(nn.Module):
    """Brings every mask to `target` open heads: by a Lagrangian, at the end by force.

    1. Up to progress 1 - `final` the loss gets lambda1 (s - t) + lambda2 (s - t)^2 per mask, s the expected
       share of gates that are not 0, and the multipliers ascend their gradient (Wang, Wohlwend & Lei 2020).
       t falls linearly from 1 to the target while progress goes from 0 to `warmup`.
    2. That holds the *expected* share, but open is what the evaluation gate says: undecided gates count half
       in the one and wholly in the other, so that runs end with too many open heads, or, where the
       multipliers overshoot, with too few. Therefore, at progress 1 - `final`, the `wanted` heads of largest
       log alpha are kept, the others closed for good, and the rest of the run trains the encoder for that
       choice. `moved` counts per mask the heads that this opened or closed: the smaller, the more the choice
       was the Lagrangian's. Only scores from this part on belong to the target.

    Progress is the share of the run's updates that are done; it stands in for the multipliers' own learning
    rate, so that `rate` need not be set anew for each length of run. They ascend in asinh(lambda / 0.1), not
    in lambda: how large they must become depends on how much heads matter to the loss, which differs by
    orders of magnitude, and so they get anywhere in time. Raises `InputError` for a target that cannot be.
    """

    multipliers: Tensor
    progress: Tensor
    chosen: Tensor
    kept: Tensor
    moved: Tensor

    def __init__(
        self,
        gates: HeadGates,
        target: int | float,
        warmup: float = 0.5,
        final: float = 0.2,
        rate: float = 30.0,
    ) -> None:
        super().__init__()
        if warmup < 0 or final <= 0 or warmup + final > 1:
            raise InputError(
                f"warmup {warmup}, final {final}: shares of the run, give two that add up to at most 1"
            )
        masks, layers, heads = gates.log_alpha.shape
        self.wanted = heads_wanted(target, layers * heads)
        self.warmup = warmup
        self.final = final
        self.rate = rate
        self.register_buffer("multipliers", torch.zeros(2, masks))
        self.register_buffer("progress", torch.zeros(()))
        self.register_buffer("chosen", torch.zeros((), dtype=torch.bool))
        self.register_buffer("kept", torch.ones(masks, layers, heads, dtype=torch.bool))
        self.register_buffer("moved", torch.zeros(masks, dtype=torch.long))

    def forward(self, gates: HeadGates, progress: float) -> Float[Tensor, " mask"]:
        """The Lagrangian's part of the loss per mask; in training the multipliers ascend."""
        if progress >= 1 - self.final:
            return torch.zeros_like(self.multipliers[0])
        total = gates.log_alpha[0].numel()
        annealed = min(1.0, progress / self.warmup) if self.warmup else 1.0
        off = gates.expected_l0() / total - (1 + (self.wanted / total - 1) * annealed)
        constraints = torch.stack([off, off.square()])
        if self.training:
            with torch.no_grad():
                step = self.rate * (progress - self.progress).clamp(min=0) * constraints
                self.multipliers.copy_(_UNIT * torch.sinh(torch.asinh(self.multipliers / _UNIT) + step))
                self.progress.fill_(progress)
        return (self.multipliers * constraints).sum(0)

    @torch.no_grad()
    def project(self, gates: HeadGates, progress: float) -> None:
        """In the run's final part, choose the heads to keep, and hold them to it; call after each update."""
        if progress < 1 - self.final:
            return
        log_alpha = gates.log_alpha
        flat = log_alpha.flatten(1)
        best = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, flat.topk(self.wanted).indices, True)
        kept = torch.where(self.chosen, self.kept, best.view_as(log_alpha))
        self.moved.copy_(torch.where(self.chosen, self.moved, (kept != gates.open()).sum((1, 2))))
        self.kept.copy_(kept)
        self.chosen.fill_(True)
        log_alpha.copy_(torch.where(kept, log_alpha.clamp(min=_KEPT), _CLOSED))
