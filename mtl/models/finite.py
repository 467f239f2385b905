"""Which tensors contain values that are not finite, and which scores are not numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from mtl.errors import InputError


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """The names of the tensors in which a number is not finite."""
    named = [(name, tensor) for name, tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not named:
        return []
    # The largest absolute value is not finite if any value is not. One wait for the device in all.
    largest = torch.stack([tensor.detach().abs().amax().float() for _, tensor in named])
    finite = largest.isfinite().tolist()
    return [name for (name, _), fine in zip(named, finite, strict=True) if not fine]


def require_numbers(scores: Mapping[str, Any]) -> None:
    """Raise `InputError` if scores of a task (a tensor, or a tuple that holds tensors) are NaN."""
    parts = [
        (task, part)
        for task, of_task in scores.items()
        for part in (of_task if isinstance(of_task, tuple) else (of_task,))
        if isinstance(part, Tensor) and part.numel()
    ]
    if not parts:
        return
    # The largest value is NaN if any value is; it needs no boolean tensor. One wait for the device in all.
    largest = torch.stack([part.amax().float() for _, part in parts])
    for (task, _), wrong in zip(parts, largest.isnan().tolist(), strict=True):
        if wrong:
            raise InputError(
                f"the scores of {task} are not numbers (nan): the model's weights are not finite, or its "
                "type is too narrow for it (use bfloat16 or float32 instead of float16)"
            )
