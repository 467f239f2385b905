"""Floating-point types: what a device has, and the narrowest that scores are computed in."""

from __future__ import annotations

import torch
from torch import Tensor


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64; Apple's does not."""
    return device.type != "mps"


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32 if its type is narrower, else as it is."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
