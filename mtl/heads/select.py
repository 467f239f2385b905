"""Select the heads of one attention by index: leave out or keep each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.pytorch_utils import Conv1D

from mtl.errors import InputError
from mtl.heads.attentions import Attention, has_module, keep_index, keys_of_heads, renumbered, share_keys
from mtl.heads.families import in_features, input_dim, note_shape
from mtl.heads.family_table import Family
from mtl.heads.replaced import choose_given_bias, hand_on_whole_bias


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
    keys: Tensor | None = None,
) -> Iterator[HeadPart]:
    """All parameters with blocks of the heads at `positions`.

    Queries and keys under a norm over all heads together (OLMo 2) have none: those of all heads stay.

    Args:
        family: the row of the table.
        attention: the attention, with at least one head.
        positions: indices of heads among those that the attention has now, in the order in which their
            blocks are wanted.
        keys: indices of the keys and values that are wanted, among those that the attention has; `None`:
            those of the positions.
    """
    module, size = attention.module, attention.size
    present, columns = in_features(attention.output) // size, _rows(positions, size)
    shared = torch.tensor(keys_of_heads(module, present), device=positions.device)
    pairs = int(shared.max()) + 1
    keys = shared[positions].unique() if keys is None else keys
    key_columns = _rows(keys, size)
    yield HeadPart(attention.output, "weight", attention.output.weight, input_dim(attention.output), columns)
    if rows_of_heads := getattr(module, "rows_of_heads", ()):
        # A module of a feature: all heads share queries and keys, which stay.
        for name in rows_of_heads:
            yield HeadPart(module, name, getattr(module, name), 0, positions)
        yield from _of_projection(module.get_submodule(family.value), columns)
    elif family.fused == "heads":
        yield from _of_projection(module.get_submodule(family.query), _rows(positions, 3 * size))
    elif family.fused == "blocks":
        blocks = (columns, present * size + key_columns, (present + pairs) * size + key_columns)
        yield from _of_projection(module.get_submodule(family.query), torch.cat(blocks))
    elif family.norms_over_heads:
        yield from _of_projection(module.get_submodule(family.value), key_columns)
    else:
        yield from _of_projection(module.get_submodule(family.query), columns)
        for name in (family.key, family.value):
            yield from _of_projection(module.get_submodule(name), key_columns)
    for name, heads in zip(family.norms_by_head, (positions, keys), strict=False):
        norm = getattr(module, name, None)
        if norm is not None:
            yield HeadPart(norm, "weight", norm.weight, 0, heads)
    for name in family.other_head_rows:
        part = getattr(module, name, None)
        if isinstance(part, nn.Linear):
            yield from _of_projection(part, columns)
        elif isinstance(part, nn.Parameter):
            yield HeadPart(module, name, part, 0, columns)
    for path in family.bias_by_head:
        owner, _, name = path.rpartition(".")
        for holder in (
            above.get_submodule(owner) for above in (module, attention.layer) if has_module(above, owner)
        ):
            if isinstance(parameter := getattr(holder, name, None), nn.Parameter):
                yield HeadPart(holder, name, parameter, parameter.dim() - 1, positions)
                break


def select_heads(
    family: Family,
    attention: Attention,
    index: Sequence[int],
    keys: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Give the attention exactly the heads at `index` (at least one), counted among those that it has.

    Keys and values are shared as before; those that no head uses any more are removed.

    Args:
        family: the row of the table.
        attention: the attention, with at least one head.
        index: the heads, in their new order.
        keys: for each head of `index` the number of the key and value that it is to have, from 0 without
            gaps; heads with the same number share it. Each is the one that its first head has now.

    Returns:
        For each head the number of its key and value.
    """
    module, output, size = attention.module, attention.output, attention.size
    present = in_features(output) // size
    before = keys_of_heads(module, present)
    shared = renumbered(before[head] for head in index) if keys is None else tuple(keys)
    first = [before[index[shared.index(pair)]] for pair in range(max(shared) + 1)]
    # Made on the CPU even where the model has no memory yet (`load_model`).
    positions, chosen = (torch.tensor(list(places), device="cpu") for places in (index, first))
    for part in list(head_parts(family, attention, positions, chosen)):
        rows = part.rows.to(part.parameter.device)
        weights = part.parameter.detach().index_select(part.dim, rows)
        setattr(part.module, part.name, nn.Parameter(weights, requires_grad=part.parameter.requires_grad))
        note_shape(part.module)
    rows_of_norms = (_rows(positions, size), _rows(chosen, size))
    for name, rows in zip(family.norms_over_heads, rows_of_norms, strict=False):
        _choose_after_norm(module.get_submodule(name), rows, output.weight.device)
    attributes: dict[str, object] = {
        **dict.fromkeys(family.head_counts, len(index)),
        **dict.fromkeys(family.head_widths, len(index) * size),
        **dict.fromkeys(family.pair_counts, max(shared) + 1),
    }
    if family.reads_configuration:
        configuration: Any = module.config
        if isinstance(configuration, LayerConfiguration):
            configuration = configuration.of_model
        attributes["config"] = LayerConfiguration(configuration, {"num_attention_heads": len(index)})
    for name, value in attributes.items():
        if hasattr(module, name):
            setattr(module, name, value)
    share_keys(module, shared, output.weight.device)
    if family.position_bias:
        numbers = getattr(module, "bias_heads", None)
        if numbers is None:
            numbers = torch.arange(present, device="cpu")
            # The bias is computed once, for all heads; a changed layer takes the part of its own heads.
            hand_on = family.position_bias == "handed_on"
            hand_on_whole_bias(module, present) if hand_on else choose_given_bias(module)
        keep_index(module, "bias_heads", numbers[positions.to(numbers.device)], output.weight.device)
    return shared


class LayerConfiguration:
    """A model's configuration as one layer reads it, with some values replaced by the layer's own."""

    def __init__(self, of_model: PretrainedConfig, values: Mapping[str, Any]) -> None:
        self.of_model, self.values = of_model, dict(values)

    def __getattr__(self, name: str) -> Any:
        if name in ("of_model", "values"):  # while it is copied or unpickled
            raise AttributeError(name)
        return self.values[name] if name in self.values else getattr(self.of_model, name)


def _of_projection(projection: nn.Module, rows: Tensor) -> Iterator[HeadPart]:
    if not isinstance(projection, nn.Linear | Conv1D):
        raise InputError(
            f"its attention has a {type(projection).__name__} where a linear layer is needed: merge adapters "
            "into the weights first (merge_and_unload of peft), and load the model without quantisation"
        )
    yield HeadPart(projection, "weight", projection.weight, 1 - input_dim(projection), rows)
    if projection.bias is not None:
        yield HeadPart(projection, "bias", projection.bias, 0, rows)


def _rows(heads: Tensor, size: int) -> Tensor:
    """The row indices of the given heads, `size` rows per head."""
    return (heads[:, None] * size + torch.arange(size, device=heads.device)).flatten()


def _choose_after_norm(norm: nn.Module, rows: Tensor, device: torch.device) -> None:
    if hasattr(norm, "chosen_rows"):
        before = norm.get_buffer("chosen_rows")
        rows = before[rows.to(before.device)]
    else:
        norm.register_forward_hook(_chosen_rows)
    keep_index(norm, "chosen_rows", rows, device)


def _chosen_rows(norm: nn.Module, inputs: tuple[Tensor, ...], normed: Tensor) -> Tensor:
    return normed[..., norm.get_buffer("chosen_rows")]
