"""Decoding in steps: what all tasks need on the host, or on the model's device, is copied at once.

A method in steps is a generator. It yields tensors, and is sent their values as arrays; or it yields arrays,
and is sent them as tensors on the device. `in_step` runs the methods of all tasks side by side, so that the
host waits for a GPU once a step, and not for each tensor of each task.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import wraps
from types import MethodType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
Steps = Generator[Sequence[Any], Sequence[Any], T]


def in_steps(method: Callable[..., Steps[T]]) -> Callable[..., T]:
    """A method that is called as any other, and whose steps `steps_of` finds.

    One of its arguments must be a tensor, which is on the device.
    """

    @wraps(method)
    def whole(*arguments: Any) -> T:
        device = next(given.device for given in arguments if isinstance(given, Tensor))
        [result] = in_step([method(*arguments)], device)
        return result

    whole.__dict__["steps"] = method
    return whole


def steps_of(method: Callable[..., T], *arguments: Any) -> Steps[T]:
    """The steps of a bound method with these arguments; one that is not `in_steps` runs after the first."""
    steps = getattr(method, "steps", None)
    if steps is None:
        yield ()
        return method(*arguments)
    assert isinstance(method, MethodType)
    result: T = yield from steps(method.__self__, *arguments)
    return result


def in_step(running: Sequence[Steps[Any]], device: torch.device) -> list[Any]:
    """The results of all; what they yield at the same time is exchanged together."""
    results: list[Any] = [None] * len(running)
    sent: dict[int, Any] = dict.fromkeys(range(len(running)))
    while sent:
        asked = {}
        for number, values in sent.items():
            try:
                asked[number] = running[number].send(values)
            except StopIteration as end:
                results[number] = end.value
        exchanged = iter(_exchanged([value for values in asked.values() for value in values], device))
        sent = {number: [next(exchanged) for _ in values] for number, values in asked.items()}
    return results


def _exchanged(values: Sequence[Any], device: torch.device) -> list[Any]:
    """Arrays of the values of tensors, and tensors on the device with those of arrays."""
    if device.type == "cpu":
        return [
            value.detach().contiguous().numpy() if isinstance(value, Tensor) else torch.from_numpy(value)
            for value in values
        ]
    there = iter(
        copied([torch.from_numpy(value) for value in values if isinstance(value, np.ndarray)], device)
    )
    here = iter(copied([value for value in values if isinstance(value, Tensor)], torch.device("cpu")))
    return [next(here).numpy() if isinstance(value, Tensor) else next(there) for value in values]


def copied(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors that are all on one device, as views of one block on another; they have no gradient.

    To a GPU the block comes from page-locked memory, which torch keeps for later blocks, and the host does
    not wait. From a GPU the host waits once.
    """
    if not tensors:
        return []
    # The widest types first, so that each tensor begins at a multiple of its numbers' size.
    order = sorted(range(len(tensors)), key=lambda place: -tensors[place].element_size())
    # A tensor of one number counts as contiguous whatever its strides, and has no bytes to view with some.
    whole = [tensors[place].detach().contiguous() for place in order]
    parts = [each.as_strided((each.numel(),), (1,)).view(torch.uint8) for each in whole]
    sizes = [len(part) for part in parts]
    block = torch.empty(
        sum(sizes), dtype=torch.uint8, device=parts[0].device, pin_memory=device.type == "cuda"
    )
    torch.cat(parts, out=block)
    moved = block.to(device, non_blocking=device.type != "cpu").split(sizes)
    views = {
        place: part.view(tensors[place].dtype).view(tensors[place].shape)
        for place, part in zip(order, moved, strict=True)
    }
    return [views[place] for place in range(len(tensors))]
