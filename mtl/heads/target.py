"""End a run with a given number of open heads; budgets of sites whose heads compete for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from mtl.errors import InputError, RunError
from mtl.heads.gates import CLOSED, HeadGates
from mtl.heads.wanted import check_at_least, heads_wanted

_KEPT = 0.0
"""Least log alpha of a head kept for good: a head that was closed restarts from a gate of 0.5."""
_LAG = 10.0
"""How many updates Adam's mean of gradients reaches back, 1 / (1 - 0.9)."""
_NARROW = 0.5
"""A small lead in log alpha: at the default rate, a twentieth of the run's updates can make it up."""
_LOSS_MEMORY = 0.05
"""Time constant of the running mean of the loss, as a share of the run."""


class MaskChoice(NamedTuple):
    """What the final choice did to one mask, within one budget."""

    open_at_choice: int
    """Heads open just before it."""
    forced_open: int
    """Heads that it opened."""
    forced_closed: int
    """Heads that it closed."""
    narrowly_kept: int
    """Kept heads whose log alpha was less than 0.5 above that of the best head left out, so that training did
    not decide between them."""


class HeadTarget(nn.Module):
    """Brings every mask to `target` open heads: by a price on open heads, and at the end by a choice.

    1. Until progress 1 - `final`, the loss gets per mask price x mean loss x expected share of gates that
       are not 0. The price is a proportional-integral controller of the error e = s - t: `gain` e + the
       integral of `rate` e over progress. The set point t falls linearly from 1 to the target while
       progress goes from 0 to `warmup`. The share s is the expected one while t falls; afterwards it is the
       share of heads that are open in evaluation, which the target is about (undecided heads count half in
       the former and wholly in the latter). Adam responds to a change of the price about ten updates late,
       so s is extrapolated that far, at the speed of the expected share.

       This is the augmented Lagrangian of Wang, Wohlwend & Lei (2020) with four changes, which leave little
       to the final choice: s in evaluation; the extrapolation; an integral that is reset to 0 when the error
       changes sign, so that it cannot wind up (the dual restarts of Gallego-Posada et al. 2022); and a price
       in units of the mask's running mean loss, which need not grow through orders of magnitude first.
    2. At progress 1 - `final`, the wanted number of heads with the largest log alpha is kept, of each site
       first the best `at_least`, and the others are closed for good. The rest of the run trains the encoder
       for that choice. `log_alpha_at_choice` is the ranking that it was made by. `choices` counts the heads
       that it opened or closed: the fewer, the more the mask was learned. Only scores from this part on
       belong to the target.

    Progress is the share of the run's updates that are done, so `gain` and `rate` fit any length.

    Each of several budgets has a price, shares and a choice of its own, over the heads of its sites. Heads of
    sites without a budget are neither priced nor chosen. The state has an entry per mask and budget, ordered
    by mask.

    Args:
        gates: the masks that will be brought to the target.
        target: open heads per mask, as a share in (0, 1] or a number above 1; or several budgets.
        warmup: share of the run in which t falls.
        final: share of the run after the choice.
        gain: price per unit of e, in mean losses.
        rate: rise of the price per unit of e and of progress, in mean losses.
        at_least: heads of every site that are kept, whatever their rank; all of a site that has fewer.

    Raises:
        InputError: `target`, `warmup`, `final` or `at_least` out of range.
        ValueError: a site in two budgets.

    Examples:
        >>> gates = HeadGates(6, 12)
        >>> target = HeadTarget(gates, 0.25)
        >>> price = target(gates, progress=0.5, loss=torch.ones(1))  # added to the loss
        >>> target.project(gates, progress=0.8)  # after each update
        >>> target.choices(gates)
        {'shared': MaskChoice(open_at_choice=72, forced_open=0, forced_closed=54, narrowly_kept=18)}
        >>> int(gates.open().sum())
        18
        >>> apart = HeadTarget(gates, [Budget(6, (0, 1), "lower"), Budget(0.25, (2, 3, 4, 5), "upper")])
        >>> apart.wanted
        (6, 12)
    """

    integral: Tensor
    mean_loss: Tensor
    expected: Tensor
    slope: Tensor
    progress: Tensor
    chosen: Tensor
    kept: Tensor
    log_alpha_at_choice: Tensor
    member: Tensor
    total: Tensor
    share: Tensor

    def __init__(
        self,
        gates: HeadGates,
        target: int | float | Sequence[Budget],
        *,
        warmup: float = 0.5,
        final: float = 0.2,
        gain: float = 50.0,
        rate: float = 500.0,
        at_least: int = 0,
    ) -> None:
        super().__init__()
        if warmup < 0 or final <= 0 or warmup + final > 1:
            shares = f"warmup {warmup}, final {final}"
            raise InputError(f"{shares}: use shares of the run, final above 0, that add up to at most 1")
        masks, sites, heads = gates.log_alpha.shape
        self.budgets = (Budget(target),) if isinstance(target, int | float) else tuple(target)
        member = membership(self.budgets, sites)
        totals: list[int] = sum_within(gates.counted[None].cpu(), member)[0].tolist()
        self.wanted_of_mask = tuple(
            tuple(
                wanted_within(budget, total, gates.group, mask)
                for budget, total in zip(self.budgets, totals, strict=True)
            )
            for mask in range(masks)
        )
        """Heads that stay open, per mask and budget."""
        for budget, member_of, *wanted in zip(self.budgets, member, *self.wanted_of_mask, strict=True):
            present = [heads for heads in gates.counted.cpu()[member_of].sum(1).tolist() if heads]
            check_at_least(at_least, present, min(wanted), gates.group, budget.name)
        self.group, self.at_least = gates.group, at_least
        self.warmup, self.final, self.gain, self.rate = warmup, final, gain, rate
        entries = masks * len(self.budgets)
        for name in ("integral", "mean_loss", "expected", "slope"):
            self.register_buffer(name, torch.zeros(entries))
        self.register_buffer("progress", torch.full((), -1.0))
        self._progress = np.float32(-1)
        """`progress`, known without waiting for the device; negative before the first update."""
        self.register_load_state_dict_post_hook(_know_progress)
        self.register_buffer("chosen", torch.zeros((), dtype=torch.bool))
        self.register_buffer("kept", torch.ones(masks, sites, heads, dtype=torch.bool))
        self.register_buffer("log_alpha_at_choice", torch.zeros(masks, sites, heads))
        # Constants, not saved.
        self.register_buffer("member", member, persistent=False)
        of_entry = torch.tensor(totals, dtype=torch.float64).repeat(masks)
        share = torch.tensor(self.wanted_of_mask, dtype=torch.float64).flatten() / of_entry
        self.register_buffer("total", of_entry.float(), persistent=False)
        self.register_buffer("share", share, persistent=False)

    @property
    def wanted(self) -> tuple[int, ...]:
        """Heads that stay open, per budget; of the first mask, where masks differ (`wanted_of_mask`)."""
        return self.wanted_of_mask[0]

    @property
    def budgeted(self) -> Bool[Tensor, "site head"]:
        """The heads of sites that have a budget."""
        return self.member.any(0)[:, None].expand(self.kept.shape[1:])

    def forward(
        self, gates: HeadGates, progress: float, loss: Float[Tensor, " mask"]
    ) -> Float[Tensor, " mask"]:
        """Per mask, what open heads cost given the masks' losses; 0 in the run's final part.

        In training this also updates the controllers.
        """
        if progress >= 1 - self.final:
            return torch.zeros_like(loss)
        annealed = min(1.0, progress / self.warmup) if self.warmup else 1.0
        differentiable = sum_within(gates.probability_open(), self.member).flatten()
        with torch.no_grad():
            # Gates need much of the warm-up to reach the closing point; until then no head would count as
            # closed.
            expected = differentiable.detach()
            if self.training:
                self._follow(expected, progress)
            heads = sum_within(gates.open_learned(), self.member).flatten() if annealed == 1 else expected
            ahead = heads + _LAG * self.slope
            error = ahead / self.total - (1 + (self.share - 1) * annealed).float()
            if self.training:
                losses = loss.detach().repeat_interleave(len(self.budgets))
                self._move(error, progress, losses)
            price = (self.gain * error + self.integral) * self.mean_loss
        cost = price * differentiable / self.total
        return cost.view(len(loss), -1).sum(1)

    def _follow(self, expected: Float[Tensor, " entry"], progress: float) -> None:
        if np.float32(progress) <= self._progress:
            return  # batches accumulated into one update count once
        if self._progress >= 0:
            torch.sub(expected, self.expected, out=self.slope)
        self.expected.copy_(expected)

    def _move(self, error: Float[Tensor, " entry"], progress: float, loss: Float[Tensor, " entry"]) -> None:
        # Before the first update there is no mean. Batches accumulated into one update count once.
        first, now = self._progress < 0, np.float32(progress)
        passed = np.float32(0) if first else max(now - self._progress, np.float32(0))
        share = 1.0 if first else min(float(passed / np.float32(_LOSS_MEMORY)), 1.0)
        self.mean_loss.lerp_(loss.to(self.mean_loss), share)
        turned = self.integral * error < 0
        self.integral.masked_fill_(turned, 0.0).add_(error * float(np.float32(self.rate) * passed))
        self.progress.fill_(progress)
        self._progress = now

    @torch.no_grad()
    def project(self, gates: HeadGates, progress: float) -> None:
        """In the run's final part, choose the heads once, and keep them open and the others closed.

        Call after each update of the gates. Raises `RunError` if log alphas on the CPU are not finite; on a
        GPU the caller checks them.
        """
        if progress < 1 - self.final:
            return
        log_alpha = gates.log_alpha
        if (
            log_alpha.device.type == "cpu" and not log_alpha.isfinite().all()
        ):  # on a GPU this would wait for it
            raise RunError("log alphas of gates are not finite: the heads to keep cannot be chosen by them")
        best = self._best(log_alpha, gates.counted)
        self.log_alpha_at_choice.copy_(torch.where(self.chosen, self.log_alpha_at_choice, log_alpha))
        self.kept.copy_(torch.where(self.chosen, self.kept, best))
        self.chosen.fill_(True)
        held = torch.where(self.kept, log_alpha.clamp(min=_KEPT), CLOSED)
        log_alpha.copy_(torch.where(self.budgeted, held, log_alpha))

    def _best(
        self, log_alpha: Float[Tensor, "mask site head"], counted: Bool[Tensor, "site head"]
    ) -> Bool[Tensor, "mask site head"]:
        """The heads that each budget keeps, and all heads without a budget."""
        units = log_alpha[:, :, :: self.group]
        if self.at_least:
            least = min(-(-self.at_least // self.group), units.shape[-1])
            first = units.masked_fill(~counted[:, :: self.group], -torch.inf).topk(least).indices
            units = units.scatter(-1, first, torch.inf)
        flat = units.flatten(1)
        best = torch.zeros_like(flat, dtype=torch.bool)
        for number, member in enumerate(self.member):
            within = (member[:, None] & counted).flatten()[:: self.group]
            ranked = flat.masked_fill(~within, -torch.inf)
            for mask, wanted in enumerate(self.wanted_of_mask):
                best[mask, ranked[mask].topk(wanted[number] // self.group).indices] = True
        return best.repeat_interleave(self.group, 1).view_as(log_alpha) | ~self.budgeted

    def choices(self, gates: HeadGates) -> dict[str, MaskChoice]:
        """What the choice did, by mask, or by `MASK/BUDGET` if budgets have names; empty before that."""
        if not self.chosen:
            return {}
        by_budget = [self._choice_within(gates, member) for member in self.member]
        return {
            f"{mask}/{budget.name}" if budget.name else mask: choices[number]
            for number, mask in enumerate(gates.masks)
            for budget, choices in zip(self.budgets, by_budget, strict=True)
        }

    def _choice_within(self, gates: HeadGates, member: Bool[Tensor, " site"]) -> list[MaskChoice]:
        """Per mask, what the choice did to the heads of one budget."""
        within, log_alpha = member[:, None], self.log_alpha_at_choice
        before, kept = (log_alpha > gates.closing_point) & within, self.kept & within
        left_out = log_alpha.masked_fill(kept | ~within, -torch.inf)
        narrow = kept & (log_alpha - left_out.amax((1, 2), keepdim=True) < _NARROW)
        numbers = torch.stack([before, kept & ~before, before & ~kept, narrow]).sum((2, 3)).T.tolist()
        return [MaskChoice(*counts) for counts in numbers]


def _know_progress(target: HeadTarget, _: object) -> None:
    target._progress = np.float32(target.progress.item())


class Budget(NamedTuple):
    """A number of heads that stay open, and the sites whose heads compete for it."""

    target: int | float | Sequence[int | float]
    """A share of these heads in (0, 1], or a number above 1; or one for each mask."""
    sites: tuple[int, ...] | None = None
    """Numbers of the sites; `None`: all."""
    name: str = ""
    """What it is called where there are several budgets, such as a kind of attention."""


class Penalty(NamedTuple):
    """The weight of the expected number of open heads per layer, and the sites whose heads are counted."""

    weight: float | Sequence[float]
    """One for all masks, or one for each."""
    sites: tuple[int, ...] | None = None
    """Numbers of the sites; `None`: all."""


def membership(parts: Sequence[Budget | Penalty], sites: int) -> Bool[Tensor, "part site"]:
    """Which sites belong to which part; raises `ValueError` for a site that belongs to two."""
    member = torch.zeros(len(parts), sites, dtype=torch.bool)
    for number, part in enumerate(parts):
        member[number, list(range(sites) if part.sites is None else part.sites)] = True
    if (member.sum(0) > 1).any():
        raise ValueError("a site belongs to two parts: name each site once")
    return member


def sum_within(
    values: Shaped[Tensor, "mask site head"], member: Bool[Tensor, "part site"]
) -> Shaped[Tensor, "mask part"]:
    """Per mask, the sum of `values` over the heads of each part."""
    return (values[:, None] * member[:, :, None]).sum((2, 3))


def wanted_within(budget: Budget, heads: int, group: int = 1, mask: int = 0) -> int:
    """A budget's target for a mask as a number of heads (`heads_wanted`), given those at its sites.

    An `InputError` starts with the budget's name.
    """
    target = budget.target if isinstance(budget.target, int | float) else budget.target[mask]
    try:
        return heads_wanted(target, heads, group)
    except InputError as error:
        raise InputError(f"{budget.name}: {error}" if budget.name else str(error)) from error
