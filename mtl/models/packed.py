"""Copy the tensors of a batch to a device, at once if they are on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

_ALIGNED = 8
"""Bytes; the offset of a tensor must be a multiple of the size of its numbers."""
T = TypeVar("T", bound="Tensors")


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors as fields, and other values beside them."""

    def each(self: T, move: Callable[[Tensor], Tensor]) -> T:
        """The same with each tensor replaced by what `move` makes of it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: move(value) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved)

    def to(self: T, device: torch.device | str) -> T:
        """The same on another device."""
        return self.each(lambda tensor: tensor.to(device))


def together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The tensors, all on the CPU, as views of one block on `device`; the host does not wait for the copy.

    For a GPU the block is packed in page-locked memory, which torch keeps for later blocks.
    """
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    room = [-(-size // _ALIGNED) * _ALIGNED for size in sizes]
    block = torch.empty(sum(room), dtype=torch.uint8, pin_memory=device.type == "cuda")
    for tensor, part in zip(tensors, _parts(tensors, block, sizes, room), strict=True):
        part.copy_(tensor)
    return _parts(tensors, block.to(device, non_blocking=True), sizes, room)


def _parts(
    tensors: Sequence[Tensor], block: Tensor, sizes: Sequence[int], room: Sequence[int]
) -> list[Tensor]:
    """Views of the block, one of the shape and type of each tensor."""
    return [
        part[:size].view(tensor.dtype).view(tensor.shape)
        for tensor, part, size in zip(tensors, block.split(list(room)), sizes, strict=True)
    ]
