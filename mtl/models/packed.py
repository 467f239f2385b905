"""Copy many small tensors to a device at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_ALIGNED = 8
"""Bytes; the offset of a tensor must be a multiple of the size of its numbers."""


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
