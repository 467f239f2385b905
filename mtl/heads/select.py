"""Select the heads of one attention by index: leave out, keep or repeat each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.pytorch_utils import Conv1D

from mtl.heads.collaborative_attention import CollaborativeAttention
from mtl.heads.families import Attention
from mtl.heads.family_table import Family
from mtl.heads.position_bias import choose_given_bias, hand_on_whole_bias
from mtl.heads.projections import in_features, input_dim, note_shape


class HeadPart(NamedTuple):
    """A parameter that has a block for each head, and where the blocks of some heads are."""

    module: nn.Module
    name: str
    """The parameter's attribute in `module`."""
    parameter: Tensor
    dim: int
    """The dimension along which heads have their blocks."""
    rows: Tensor
    """Indices along `dim` of these heads' blocks."""


def head_parts(
    family: Family,
    attention: Attention,
    positions: Tensor,
    size: int,
    present: int,
    keys: Tensor | None = None,
) -> Iterator[HeadPart]:
    """All parameters with blocks of the heads at `positions`.

    Queries and keys under a norm over all heads together (OLMo 2) have none: those of all heads stay.

    Args:
        family: the row of the table.
        attention: the attention, with at least one head.
        positions: indices from 0 to `present` - 1, in the order in which the heads' blocks are wanted; a
            head may be repeated.
        size: a head's dimensions.
        present: the number of heads that the attention has now.
        keys: indices of the keys and values that are wanted, among those that the attention has; `None`: one
            for each of the positions.
    """
    module = attention.module
    columns = _rows(positions, size)
    groups = neighbours_sharing(attention)
    keys = positions // groups if keys is None else keys
    key_columns = _rows(keys, size)
    yield HeadPart(attention.output, "weight", attention.output.weight, input_dim(attention.output), columns)
    if isinstance(module, CollaborativeAttention):
        # All heads share queries and keys, which stay.
        for name in ("mixing", "content"):
            yield HeadPart(module, name, getattr(module, name), 0, positions)
        yield from _of_projection(module.get_submodule(family.value), columns)
    elif family.fused == "heads":
        yield from _of_projection(module.get_submodule(family.query), _rows(positions, 3 * size))
    elif family.fused == "blocks":
        blocks = (columns, present * size + key_columns, (present + present // groups) * size + key_columns)
        yield from _of_projection(module.get_submodule(family.query), torch.cat(blocks))
    elif family.norms_over_heads:
        yield from _of_projection(module.get_submodule(family.value), key_columns)
    else:
        yield from _of_projection(module.get_submodule(family.query), columns)
        for name in (family.key, family.value):
            yield from _of_projection(module.get_submodule(name), key_columns)
    for name in family.other_head_rows:
        part = getattr(module, name, None)
        if isinstance(part, nn.Linear):
            yield from _of_projection(part, columns)
        elif isinstance(part, nn.Parameter):
            yield HeadPart(module, name, part, 0, columns)


def neighbours_sharing(attention: Attention) -> int:
    """How many neighbouring heads of the attention now share keys and values."""
    return int(getattr(attention.module, "num_key_value_groups", 1))


def common_share(attention: Attention, index: Sequence[int]) -> int:
    """How many neighbours can share keys and values if the heads at `index` stay; 1 if they share none.

    It is the greatest common divisor of the numbers of heads that stay in each group. Nothing is copied if
    whole groups are cut, or equally many heads from each.
    """
    groups = neighbours_sharing(attention)
    if groups == 1:
        return 1
    return math.gcd(*(len(list(group)) for _, group in groupby(head // groups for head in index)))


def select_heads(
    family: Family, attention: Attention, index: Sequence[int], size: int, sharing: int = 1
) -> None:
    """Give the attention exactly the heads at `index` (at least one), counted among those that it has.

    A head named twice becomes two heads with parameters of their own. Afterwards `sharing` neighbouring heads
    share keys and values; it must divide `common_share`. Larger groups get copies of their keys and values,
    which training may tell apart.
    """
    module, output = attention.module, attention.output
    present = in_features(output) // size
    positions = torch.tensor(list(index), dtype=torch.long, device=output.weight.device)
    keys = positions[::sharing] // neighbours_sharing(attention)
    for part in list(head_parts(family, attention, positions, size, present, keys)):
        chosen = part.parameter.detach().index_select(part.dim, part.rows)
        setattr(part.module, part.name, nn.Parameter(chosen, requires_grad=part.parameter.requires_grad))
        note_shape(part.module)
    for name, rows in zip(family.norms_over_heads, (_rows(positions, size), _rows(keys, size)), strict=False):
        _choose_after_norm(module.get_submodule(name), rows)
    attributes: dict[str, object] = dict(_numbers(len(index), size, sharing))
    if family.reads_configuration:
        configuration: Any = module.config
        if isinstance(configuration, LayerConfiguration):
            configuration = configuration.of_model
        attributes["config"] = LayerConfiguration(configuration, {"num_attention_heads": len(index)})
    for name, value in attributes.items():
        if hasattr(module, name):
            setattr(module, name, value)
    if family.position_bias:
        if not hasattr(module, "bias_heads"):
            heads = torch.arange(present, device=positions.device)
            module.register_buffer("bias_heads", heads, persistent=False)
            # The bias is computed once, for all heads; a changed layer takes the part of its own heads.
            (choose_given_bias if family.position_bias == "given" else hand_on_whole_bias)(module)
        module.register_buffer("bias_heads", module.get_buffer("bias_heads")[positions], persistent=False)


class LayerConfiguration:
    """A model's configuration as one layer reads it, with some values replaced by the layer's own."""

    def __init__(self, of_model: PretrainedConfig, values: Mapping[str, Any]) -> None:
        self.of_model, self.values = of_model, dict(values)

    def __getattr__(self, name: str) -> Any:
        if name in ("of_model", "values"):  # while it is copied or unpickled
            raise AttributeError(name)
        return self.values[name] if name in self.values else getattr(self.of_model, name)


def _numbers(heads: int, size: int, sharing: int) -> dict[str, int]:
    """The numbers that depend on the heads, under all names that attention modules give them."""
    return {
        "num_attention_heads": heads,
        "num_heads": heads,
        "n_heads": heads,
        "all_head_size": heads * size,
        "inner_dim": heads * size,
        "split_size": heads * size,
        "num_key_value_groups": sharing,
        "num_key_value_heads": heads // sharing,
    }


def _of_projection(projection: nn.Module, rows: Tensor) -> Iterator[HeadPart]:
    assert isinstance(projection, nn.Linear | Conv1D)
    yield HeadPart(projection, "weight", projection.weight, 1 - input_dim(projection), rows)
    if projection.bias is not None:
        yield HeadPart(projection, "bias", projection.bias, 0, rows)


def _rows(heads: Tensor, size: int) -> Tensor:
    """The row indices of the given heads, `size` rows per head."""
    return (heads[:, None] * size + torch.arange(size, device=heads.device)).flatten()


def _choose_after_norm(norm: nn.Module, rows: Tensor) -> None:
    if hasattr(norm, "chosen_rows"):
        rows = norm.get_buffer("chosen_rows")[rows]
    else:
        norm.register_forward_hook(_chosen_rows)
    norm.register_buffer("chosen_rows", rows, persistent=False)


def _chosen_rows(norm: nn.Module, inputs: tuple[Tensor, ...], normed: Tensor) -> Tensor:
    return normed[..., norm.get_buffer("chosen_rows")]
