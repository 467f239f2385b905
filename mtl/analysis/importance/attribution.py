"""Which row of which forward pass belongs to which example of a batch, found by gradients.

A loss gives a value per example, however it ran the model: in one pass, in two, in one per example, with rows
in another order, or with several rows for an example. The gradient of the summed losses at a row is the sum
of the examples' own gradients there. If the losses are first weighted, each example by a number of its own,
the gradient at a row that serves a single example is multiplied by that example's weight, which identifies
it. Rounding blurs the factor. If a batch has more examples than one factor can tell apart, each example has
several weights, one for each digit of its number. If a row serves several examples (negatives within a batch,
several texts in a row), its gradient is no multiple of the unweighted one, and each example gets its own
backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtl.errors import InputError
from mtl.heads.tap import HeadOutputs

_RANGE = 8.0
"""The weights of a batch's losses run from 1 to 2 to this power; their logarithms are evenly spaced."""
_APART = 4.0
"""The least relative difference of two weights, as a multiple of the rounding that is tolerated."""


class HeadGradients(NamedTuple):
    """Derivatives of losses with respect to gates; zero at sites that no pass reached."""

    example: Float[Tensor, "example site head"]
    absolute: Float[Tensor, "1 site head"]
    """Sums over examples, rows and positions of the absolute value there."""


def head_gradients(
    losses: Float[Tensor, " example"], outputs: HeadOutputs, heads: int, *, alike: bool = False
) -> tuple[HeadGradients, bool]:
    """The derivative of each example's loss with respect to the gates, summed over rows and positions.

    Also returned is whether each row of a site was found to serve an example of its own. `alike` is this
    finding of an earlier batch: with as many rows as examples, the rows are then not examined again.
    """
    sites = [site for site, passes in enumerate(outputs.passes) for _ in passes]
    tensors = [output for passes in outputs.passes for output in passes]
    shape, count = (len(outputs.passes), heads), len(losses)
    rowwise = len(set(sites)) == len(sites) and all(len(output) == count for output in tensors)
    if count > 1 and not (alike and rowwise):
        summed = _gradients(losses.sum(), tensors, retain=True)
        found = _owners_of_rows(losses, tensors, summed)
        if found is None:
            parts = [
                _by_example(
                    _gradients(loss, tensors, retain=True), tensors, sites, shape, [None] * len(sites), 1
                )
                for loss in losses
            ]
            absolute = torch.stack([part.absolute for part in parts]).sum(0)
            return HeadGradients(torch.cat([part.example for part in parts]), absolute), False
        apart = rowwise and all(map(_apart, found, summed))
        return _by_example(summed, tensors, sites, shape, found, count), apart
    owners = [torch.arange(count, device=losses.device) if count > 1 else None for _ in sites]
    return _by_example(
        _gradients(losses.sum(), tensors, retain=False), tensors, sites, shape, owners, count
    ), alike


def summed_gradients(
    losses: Float[Tensor, " example"], outputs: HeadOutputs, heads: int
) -> Float[Tensor, "1 site head"]:
    """The derivative of the sum of the losses with respect to the gates."""
    return head_gradients(losses.sum()[None], outputs, heads)[0].example


def require_finite(gradients: Float[Tensor, "example site head"]) -> None:
    """Raise `InputError` for a derivative that is not finite, such as that of a root at zero."""
    for example, *_ in (~torch.isfinite(gradients)).nonzero().tolist():
        raise InputError(
            f"the loss of row {example} of a batch has a derivative with respect to heads that is not finite,"
            " as roots and logarithms have at zero"
        )


def _gradients(loss: Tensor, tensors: Sequence[Tensor], *, retain: bool) -> list[Tensor]:
    if not tensors:
        return []
    found = torch.autograd.grad(loss, tensors, retain_graph=retain, allow_unused=True)
    return [
        torch.zeros_like(output) if gradient is None else gradient
        for output, gradient in zip(tensors, found, strict=True)
    ]


def _owners_of_rows(
    losses: Float[Tensor, " example"], tensors: Sequence[Tensor], summed: Sequence[Tensor]
) -> list[Tensor] | None:
    """The example that each row of each tensor serves; `None` if a row serves several examples.

    `summed` are the gradients of the sum of the losses. Each further backward pass gives one digit.
    """
    count, place = len(losses), 1
    coarsest = max(map(_tolerance, (losses, *summed)))
    base = min(count, int(_RANGE / math.log2(1 + _APART * coarsest)))
    weights = torch.linspace(0, _RANGE, base, dtype=torch.float64, device=losses.device).exp2()
    weights = weights.to(losses.dtype)
    examples = torch.arange(count, device=losses.device)
    owners = [torch.zeros(len(gradient), dtype=torch.long, device=losses.device) for gradient in summed]
    while place < count:
        weighted = _gradients((losses * weights[examples // place % base]).sum(), tensors, retain=True)
        for owner, one, other in zip(owners, summed, weighted, strict=True):
            digits = _digits(one, other, weights.double())
            if digits is None:
                return None
            owner += place * digits
        place *= base
    return owners if all(bool((owner < count).all()) for owner in owners) else None


def _apart(owners: Int[Tensor, " row"], gradient: Tensor) -> bool:
    """Whether no two rows with a gradient serve the same example."""
    used = owners[gradient.flatten(1).any(1)]
    return len(used.unique()) == len(used)


def _tolerance(numbers: Tensor) -> float:
    return float(torch.finfo(numbers.dtype).eps ** 0.5)


def _digits(one: Tensor, other: Tensor, weights: Tensor) -> Tensor | None:
    """Which weight each row's gradient was multiplied by; `None` unless every row's was by one of them."""
    tolerance = _tolerance(one)
    rows, weighted = one.flatten(1).double(), other.flatten(1).double()
    largest = rows.abs().amax(1, keepdim=True) if rows.shape[1] else rows.new_zeros(len(rows), 1)
    none = (largest == 0).flatten() & (weighted == 0).all(1)
    if bool(((largest == 0).flatten() & ~none).any()):
        return None  # contributions of several examples that cancel
    rows, weighted = rows / largest.clamp_min(1e-300), weighted / largest.clamp_min(1e-300)
    ratio = (rows * weighted).sum(1) / rows.square().sum(1).clamp_min(1e-300)
    exponents = torch.where(none, 0.0, ratio.clamp_min(1e-300).log2())
    digits = (exponents[:, None] - weights.log2()).abs().argmin(1)
    error = weighted - weights[digits, None] * rows
    fits = error.abs().amax(1) <= tolerance * weighted.abs().amax(1).clamp_min(1e-300)
    return digits if bool((fits | none).all()) else None


def _by_example(
    gradients: Sequence[Tensor],
    tensors: Sequence[Tensor],
    sites: Sequence[int],
    shape: tuple[int, int],
    owners: Sequence[Tensor | None],
    count: int,
) -> HeadGradients:
    """Sums over the rows of each example; without owners, all rows serve the only example."""
    device = tensors[0].device if tensors else torch.device("cpu")
    example = torch.zeros(count, *shape, dtype=torch.float64, device=device)
    absolute = torch.zeros(1, *shape, dtype=torch.float64, device=device)
    for site, output, gradient, owner in zip(sites, tensors, gradients, owners, strict=True):
        positions = (output.detach() * gradient).sum(-1).double()
        rows = positions.sum(1)
        index = torch.zeros(len(rows), dtype=torch.long, device=device) if owner is None else owner
        example[:, site].index_add_(0, index, rows)
        absolute[0, site] += positions.abs().sum((0, 1))
    return HeadGradients(example, absolute)
