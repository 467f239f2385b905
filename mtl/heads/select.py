"""Heads of one attention selected by index: left out, kept, or there more than once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mtl.heads.families import Attention, Family


class HeadPart(NamedTuple):
    """A parameter that has a block for each head, and where the blocks of some heads are."""

    module: nn.Module
    name: str
    parameter: Tensor
    dim: int
    rows: Tensor


def head_parts(
    family: Family, attention: Attention, positions: Tensor, size: int, present: int
) -> Iterator[HeadPart]:
    """All parameters of the heads at `positions`, which count the `present` heads of the attention.

    Args:
        family: the row of the table.
        attention: the attention, with at least one head.
        positions: the heads, in the order in which their rows are wanted; a head may come repeatedly.
        size: a head's dimensions.
        present: the number of heads that the attention has now.
    """
    module = attention.module
    columns = _rows(positions, size)
    yield HeadPart(attention.output, "weight", attention.output.weight, 1, columns)
    if family.fused == "heads":
        yield from _of_linear(module.get_submodule(family.query), _rows(positions, 3 * size))
    elif family.fused == "blocks":
        block = present * size * torch.arange(3, device=positions.device)[:, None]
        yield from _of_linear(module.get_submodule(family.query), (block + columns).flatten())
    else:
        yield from _of_linear(module.get_submodule(family.query), columns)
        groups = getattr(module, "num_key_value_groups", 1)
        for name in (family.key, family.value):
            yield from _of_linear(module.get_submodule(name), _rows(positions // groups, size))
    for name in family.other_head_rows:
        part = getattr(module, name, None)
        if isinstance(part, nn.Linear):
            yield from _of_linear(part, columns)
        elif isinstance(part, nn.Parameter):
            yield HeadPart(module, name, part, 0, columns)


def select_heads(family: Family, attention: Attention, index: Sequence[int], size: int) -> None:
    """Give the attention the heads at `index`, counted among those that it has; none of them is left out.

    A head that `index` names twice is there twice, with parameters of its own each time. Where several heads
    share keys and values, each gets its own copy.
    """
    module, output = attention.module, attention.output
    present = output.in_features // size
    positions = torch.tensor(list(index), dtype=torch.long, device=output.weight.device)
    for part in list(head_parts(family, attention, positions, size, present)):
        chosen = part.parameter.detach().index_select(part.dim, part.rows)
        setattr(part.module, part.name, nn.Parameter(chosen, requires_grad=part.parameter.requires_grad))
        if isinstance(part.module, nn.Linear):
            part.module.out_features, part.module.in_features = part.module.weight.shape
    numbers = {
        "num_attention_heads": len(index),
        "n_heads": len(index),
        "all_head_size": len(index) * size,
        "num_key_value_groups": 1,
    }
    for name, number in numbers.items():
        if hasattr(module, name):
            setattr(module, name, number)
    if family.position_bias:
        if not hasattr(module, "bias_heads"):
            heads = torch.arange(present, device=positions.device)
            module.register_buffer("bias_heads", heads, persistent=False)
            module.register_forward_pre_hook(_choose_position_bias)
        module.register_buffer("bias_heads", module.get_buffer("bias_heads")[positions], persistent=False)


def _of_linear(linear: nn.Module, rows: Tensor) -> Iterator[HeadPart]:
    assert isinstance(linear, nn.Linear)
    yield HeadPart(linear, "weight", linear.weight, 0, rows)
    if linear.bias is not None:
        yield HeadPart(linear, "bias", linear.bias, 0, rows)


def _rows(heads: Tensor, size: int) -> Tensor:
    """The rows of the given heads, `size` of them each."""
    return (heads[:, None] * size + torch.arange(size, device=heads.device)).flatten()


def _choose_position_bias(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """MPNet computes one bias for all heads of all layers; a changed layer takes that of its own heads."""
    hidden, mask, bias, *rest = inputs
    return hidden, mask, bias[:, module.get_buffer("bias_heads")], *rest
