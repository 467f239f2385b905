"""Ending a run with a chosen number of open heads."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mtl.errors import InputError
from mtl.heads.allotment import check_at_most, choose_heads
from mtl.heads.gates import CLOSED, HeadGates

_KEPT = 0.0
"""Least log alpha of a head kept for good: one that was closed starts again from a gate of 0.5."""
_LAG = 10.0
"""How many updates Adam's mean of gradients reaches back, 1 / (1 - 0.9)."""
_NARROW = 0.5
"""Lead in log alpha that is small: at the default rate, a twentieth of the run's updates can make it up."""
_LOSS_MEMORY = 0.05
"""Share of the run over which the mean loss is taken."""


class Choice(NamedTuple):
    """What the final choice did to one mask."""

    open_at_choice: int
    """Heads open just before it."""
    forced_open: int
    """Heads that it opened."""
    forced_closed: int
    """Heads that it closed."""
    narrowly_kept: int
    """Kept heads whose log alpha was less than 0.5 above that of the best head left out: training did not
    tell them from it, however few were forced. Where a head may be in few masks only, that head may have been
    left out for another mask."""


class HeadTarget(nn.Module):
    """Brings every mask to `target` open heads: by a price on open heads, at the end by a choice.

    1. Up to progress 1 - `final` the loss gets, per mask, price x mean loss x expected share of gates that
       are not 0. The price is a proportional-integral controller of the error e = s - t: `gain` e + the
       integral of `rate` e over progress. t falls linearly from 1 to the target while progress goes from 0
       to `warmup`; s is the expected share while t falls, and then the share of heads that are open in
       evaluation, which is what the target is about (undecided heads count half in the one and wholly in
       the other). Adam answers a change of the price some ten updates late; therefore s is looked at that
       far ahead, at the speed at which the expected share moves. This is the augmented Lagrangian of Wang,
       Wohlwend & Lei (2020), changed in four ways that leave little to the final choice: that second s; the
       look ahead; the integral is set to 0 when the error changes sign, so that it cannot wind up (the dual
       restarts of Gallego-Posada et al. 2022); and the price is in units of the mask's running mean loss, so
       that it need not grow through orders of magnitude first.
    2. At progress 1 - `final`, the `wanted` heads of largest log alpha are kept, the others closed for good,
       and the rest of the run trains the encoder for that choice. `log_alpha_at_choice` is the ranking it
       was made by and `choices` says how many heads it opened or closed: the fewer, the more the mask was
       learned. Only scores from this part on belong to the target.

    Progress is the share of the run's updates that are done, so that `gain` and `rate` fit any length.

    Args:
        gates: the masks that will be brought to the target.
        target: open heads per mask, as a share in (0, 1] or a number above 1.
        warmup: share of the run in which t falls.
        final: share of the run after the choice.
        gain: price per error, in mean losses.
        rate: rise of the price per error and progress, in mean losses.
        at_most: the masks that may keep the same head (`choose_heads`); 1 makes them disjoint, `None` leaves
            every mask its own best heads.

    Raises:
        InputError: a target, phases or a number of masks per head that cannot be.

    Examples:
        >>> gates = HeadGates(6, 12)
        >>> target = HeadTarget(gates, 0.25)
        >>> price = target(gates, progress=0.5, loss=torch.ones(1))  # added to the loss
        >>> target.project(gates, progress=0.8)  # after each update
        >>> target.choices(gates)
        {'shared': Choice(open_at_choice=72, forced_open=0, forced_closed=54, narrowly_kept=18)}
        >>> int(gates.open().sum())
        18
    """

    integral: Tensor
    mean_loss: Tensor
    expected: Tensor
    slope: Tensor
    progress: Tensor
    chosen: Tensor
    kept: Tensor
    log_alpha_at_choice: Tensor

    def __init__(
        self,
        gates: HeadGates,
        target: int | float,
        *,
        warmup: float = 0.5,
        final: float = 0.2,
        gain: float = 50.0,
        rate: float = 500.0,
        at_most: int | None = None,
    ) -> None:
        super().__init__()
        if warmup < 0 or final <= 0 or warmup + final > 1:
            raise InputError(
                f"warmup {warmup}, final {final}: shares of the run, give two that add up to at most 1"
            )
        masks, layers, heads = gates.log_alpha.shape
        self.wanted = heads_wanted(target, gates.present, gates.group)
        self.at_most, self.group = at_most, gates.group
        if at_most is not None:
            check_at_most(masks, self.wanted, at_most, gates.present)
        self.warmup, self.final, self.gain, self.rate = warmup, final, gain, rate
        self.register_buffer("integral", torch.zeros(masks))
        self.register_buffer("mean_loss", torch.zeros(masks))
        self.register_buffer("expected", torch.zeros(masks))
        self.register_buffer("slope", torch.zeros(masks))
        self.register_buffer("progress", torch.full((), -1.0))
        self.register_buffer("chosen", torch.zeros((), dtype=torch.bool))
        self.register_buffer("kept", torch.ones(masks, layers, heads, dtype=torch.bool))
        self.register_buffer("log_alpha_at_choice", torch.zeros(masks, layers, heads))

    def forward(
        self, gates: HeadGates, progress: float, loss: Float[Tensor, " mask"]
    ) -> Float[Tensor, " mask"]:
        """The price of open heads per mask, given each mask's loss; in training the controller moves on."""
        if progress >= 1 - self.final:
            return torch.zeros_like(self.integral)
        total = gates.present
        annealed = min(1.0, progress / self.warmup) if self.warmup else 1.0
        with torch.no_grad():
            # Gates need much of the warm-up to reach the closing point: until then none would be counted.
            expected = gates.expected_l0()
            if self.training:
                self._follow(expected, progress)
            heads = gates.open_learned().sum((1, 2)) if annealed == 1 else expected
            ahead = heads + _LAG * self.slope
            error = ahead / total - (1 + (self.wanted / total - 1) * annealed)
            if self.training:
                self._move(error, progress, loss.detach())
            price = (self.gain * error + self.integral) * self.mean_loss
        return price * gates.expected_l0() / total

    def _follow(self, expected: Float[Tensor, " mask"], progress: float) -> None:
        # Accumulated batches of one update are one step. Nothing here waits for the device.
        first, new = self.progress < 0, self.progress < progress
        slope = torch.where(new, expected - self.expected, self.slope)
        self.slope.copy_(torch.where(first, 0.0, slope))
        self.expected.copy_(torch.where(new, expected, self.expected))

    def _move(self, error: Float[Tensor, " mask"], progress: float, loss: Float[Tensor, " mask"]) -> None:
        # Before the first update there is no mean; accumulated batches of one update are one step.
        first = self.progress < 0
        passed = torch.where(first, 0.0, progress - self.progress).clamp(min=0)
        share = torch.where(first, 1.0, (passed / _LOSS_MEMORY).clamp(max=1))
        self.mean_loss.lerp_(loss.to(self.mean_loss), share)
        turned = self.integral * error < 0
        self.integral.copy_(torch.where(turned, 0.0, self.integral) + self.rate * passed * error)
        self.progress.fill_(progress)

    @torch.no_grad()
    def project(self, gates: HeadGates, progress: float) -> None:
        """In the run's final part, choose the heads to keep, and hold them to it; call after each update."""
        if progress < 1 - self.final:
            return
        log_alpha = gates.log_alpha
        flat, wanted = log_alpha.flatten(1)[:, :: self.group], self.wanted // self.group
        if self.at_most is None:
            best = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, flat.topk(wanted).indices, True)
        elif self.chosen:
            best = self.kept.flatten(1)[:, :: self.group]
        else:
            best = choose_heads(flat, wanted, self.at_most)
        best = best.repeat_interleave(self.group, 1)
        self.log_alpha_at_choice.copy_(torch.where(self.chosen, self.log_alpha_at_choice, log_alpha))
        self.kept.copy_(torch.where(self.chosen, self.kept, best.view_as(log_alpha)))
        self.chosen.fill_(True)
        log_alpha.copy_(torch.where(self.kept, log_alpha.clamp(min=_KEPT), CLOSED))

    def choices(self, gates: HeadGates) -> dict[str, Choice]:
        """Per mask what the choice did; empty before it."""
        if not self.chosen:
            return {}
        log_alpha, kept = self.log_alpha_at_choice, self.kept
        before = log_alpha > gates.closing_point
        best_left_out = log_alpha.masked_fill(kept, -torch.inf).amax((1, 2), keepdim=True)
        narrow = kept & (log_alpha - best_left_out < _NARROW)
        figures = torch.stack([before, kept & ~before, before & ~kept, narrow]).sum((2, 3)).T.tolist()
        return {mask: Choice(*counts) for mask, counts in zip(gates.masks, figures, strict=True)}


def heads_wanted(target: int | float, heads: int, group: int = 1) -> int:
    """A target as a number of heads: a share in (0, 1] of `heads`, or a whole number above 1.

    Where `group` heads go together it is a number of whole groups: of a share the nearest one.
    """
    if 0 < target <= 1:
        wanted = round(target * heads / group) * group
        if wanted < 1:
            raise InputError(f"target {target}: less than one of {heads} heads; give {1 / heads:.4f} or more")
        return wanted
    if not target > 0:
        raise InputError(f"target {target}: give a share of the heads in (0, 1] or a number of heads above 1")
    if target > heads:
        raise InputError(f"target {target:g}: there are only {heads} heads")
    if target != int(target):
        raise InputError(f"target {target}: a number of heads must be whole (a share is in (0, 1])")
    if int(target) % group:
        raise InputError(f"target {target:g}: heads go by groups of {group}: give a multiple of {group}")
    return int(target)
