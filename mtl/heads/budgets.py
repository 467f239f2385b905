"""Budgets: sites whose heads compete for one number of open heads. Penalties: sites under one weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from mtl.errors import InputError
from mtl.heads.wanted import heads_wanted


class Budget(NamedTuple):
    """A number of heads that stay open, and the sites whose heads compete for it."""

    target: int | float
    """A share of these heads in (0, 1], or a number above 1."""
    sites: tuple[int, ...] | None = None
    """Numbers of the sites; `None`: all."""
    name: str = ""
    """What it is called where there are several budgets, such as a kind of attention."""


class Penalty(NamedTuple):
    """The weight of the expected number of open heads per layer, and the sites whose heads are counted."""

    weight: float
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


def wanted_within(budget: Budget, heads: int, group: int = 1) -> int:
    """A budget's target as a number of heads (`heads_wanted`), given the number of heads at its sites.

    An `InputError` starts with the budget's name.
    """
    try:
        return heads_wanted(budget.target, heads, group)
    except InputError as error:
        raise InputError(f"{budget.name}: {error}" if budget.name else str(error)) from error
