"""Which tensors hold values that are not finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """The names of the tensors in which a number is not finite."""
    named = [(name, tensor) for name, tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not named:
        return []
    # One wait for the device in all. The largest absolute value is not finite where any value is not.
    largest = torch.stack([tensor.detach().abs().amax().float() for _, tensor in named])
    finite = largest.isfinite().tolist()
    return [name for (name, _), fine in zip(named, finite, strict=True) if not fine]
