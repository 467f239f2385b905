"""Dropout on a CPU, with masks that cost next to nothing compared with the multiplication."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, no_type_check

import numba
import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mtl.tasks.compiled import compiled

_RANGE = 2**32
_DTYPES = (torch.float32, torch.bfloat16)


class CounterDropout(nn.Dropout):
    """Dropout whose mask is a hash of each element's place and a seed, as on a GPU.

    The seed of a call is drawn from torch's generator, so runs can be repeated and resumed as with any
    dropout. On a CPU torch draws the numbers of a mask one after the other, which takes about 6 ns per
    element; a hash takes 0.15 ns. An element is dropped with probability `p`, rounded to a multiple of 2^-32.
    On other devices, in place, and for types other than float32 and bfloat16, torch's dropout is used.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Any shape; the input itself in evaluation."""
        drawn = self.training and 0.0 < self.p < 1.0 and not self.inplace
        if not drawn or input.device.type != "cpu" or input.dtype not in _DTYPES:
            return super().forward(input)
        return input * scaled_mask(input, self.p)


def draw_by_counter(model: nn.Module) -> None:
    """Make each plain `nn.Dropout` of a model a `CounterDropout`; its subclasses stay as they are.

    Modules that hold a `CounterDropout` draw the masks of transformers' `sdpa` attention in the same way.
    Other modules, and other models of the process, keep transformers' function.
    """
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = CounterDropout
    present = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if getattr(present, "func", None) is not _attend:
        ALL_ATTENTION_FUNCTIONS.register("sdpa", partial(_attend, present))


def _attend(
    otherwise: Callable[..., tuple[Tensor, Tensor | None]],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention [batch head word size] with dropout, in float32, as torch computes it on a CPU.

    Anything but an encoder's plain attention with a `CounterDropout` is left to `otherwise`.
    """
    causal = options.get("is_causal")
    counted = (
        0.0 < dropout < 1.0
        and query.device.type == "cpu"
        and query.dtype in _DTYPES
        and key.shape[:2] == query.shape[:2]
        and not (getattr(module, "is_causal", True) if causal is None else causal)
        and options.get("position_bias") is None
        and options.get("cache") is None
        and any(isinstance(part, CounterDropout) for part in module.children())
    )
    if not counted:
        return otherwise(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    with torch.autocast("cpu", enabled=False):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = (query.float() * scale) @ key.float().transpose(2, 3)
        if attention_mask is not None:
            scores = scores + _added(attention_mask)
        weights = scores.softmax(3)
        output = (weights * scaled_mask(weights, dropout)) @ value.float()
    return output.to(query.dtype).transpose(1, 2).contiguous(), None


def _added(mask: Tensor) -> Tensor:
    """What is added to scores: a mask of numbers as it is; for a boolean one the lowest number if false."""
    if mask.dtype != torch.bool:
        return mask
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(mask.shape).masked_fill_(mask.logical_not(), lowest)


def scaled_mask(like: Tensor, p: float) -> Tensor:
    """A mask of the shape and type of `like`: 0 with probability `p`, else 1 / (1 - p)."""
    mask = torch.empty(like.shape, dtype=like.dtype)
    kept = torch.tensor(1 / (1 - p), dtype=like.dtype)
    bits = torch.int32 if like.dtype == torch.float32 else torch.int16
    seed = int(torch.empty((), dtype=torch.int64).random_())
    _fill(
        mask.view(bits).numpy().reshape(-1), np.uint32(seed % _RANGE), np.uint32(seed // _RANGE),
        np.uint32(min(round(p * _RANGE), _RANGE - 1)), kept.view(bits).numpy()[()],
    )  # fmt: skip
    return mask


@compiled
@no_type_check
def _fill(mask, seed, stream, dropped, kept):
    """Write `kept` where the hash of a place is at least `dropped`, else 0.

    The hash is a bijection of 32 bits with good avalanche. It has only multiplications and shifts, so that it
    is vectorised. `stream` comes in between, so that two seeds do not give shifted copies of one sequence.
    """
    for place in range(mask.size):
        value = numba.uint32(numba.uint32(place) * numba.uint32(0x9E3779B1) + seed)
        value = numba.uint32(value ^ (value >> numba.uint32(16)))
        value = numba.uint32((value ^ stream) * numba.uint32(0x21F0AAAD))
        value = numba.uint32(value ^ (value >> numba.uint32(15)))
        value = numba.uint32(value * numba.uint32(0x735A2D97))
        value = numba.uint32(value ^ (value >> numba.uint32(15)))
        mask[place] = kept if value >= dropped else mask.dtype.type(0)
