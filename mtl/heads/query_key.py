"""The query and key matrices of each head, as every family of the table keeps them."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mtl.heads.collaborative_attention import CollaborativeAttention
from mtl.heads.families import Attention, attentions, family_of
from mtl.heads.family_table import Family
from mtl.heads.projections import input_dim
from mtl.heads.select import neighbours_sharing


class QueryKey(NamedTuple):
    """W_Q and W_K of the heads of an attention: what a head compares is X W_Q with Y W_K."""

    queries: Float[Tensor, "head input size"]
    keys: Float[Tensor, "head input size"]


def query_key(family: Family, attention: Attention, size: int) -> QueryKey:
    """The matrices of the heads that are there, at least one; `size` is a head's number of dimensions.

    Heads that share keys have the same ones. Heads of a collaborative attention have its components, weighed
    in the queries. Norms and rotations that follow the projections are not in them.
    """
    module, heads = attention.module, len(attention.remaining)
    if isinstance(module, CollaborativeAttention):
        queries, keys = module.shared()
        return QueryKey(queries * module.mixing[:, None], keys.expand(heads, -1, -1))
    sharing = neighbours_sharing(attention)
    first = _rows(module.get_submodule(family.query))
    if family.fused == "heads":
        by_head = first.unflatten(0, (heads, 3, size))
        queries, keys = by_head[:, 0], by_head[:, 1]
    elif family.fused == "blocks":
        many, few = heads * size, heads // sharing * size
        queries = first[:many].unflatten(0, (heads, size))
        keys = first[many : many + few].unflatten(0, (-1, size))
    else:
        chosen = [_after_norm(module, name) for name in family.norms_over_heads] or [None, None]
        second = _rows(module.get_submodule(family.key))
        queries, keys = (
            (rows if index is None else rows[index]).unflatten(0, (-1, size))
            for rows, index in zip((first, second), chosen, strict=True)
        )
    return QueryKey(queries.transpose(1, 2), keys.repeat_interleave(sharing, 0).transpose(1, 2))


def query_bias(family: Family, attention: Attention, size: int) -> Float[Tensor, "head size"]:
    """The bias of each head's queries, zeros where there is none; for projections that are not fused."""
    projection = attention.module.get_submodule(family.query)
    assert isinstance(projection, nn.Linear)
    assert not family.fused
    if projection.bias is None:
        return projection.weight.new_zeros(len(attention.remaining), size)
    bias: Tensor = projection.bias
    return bias.unflatten(0, (-1, size))


def query_key_parameters(model: PreTrainedModel) -> int:
    """The parameters of all queries and keys: weights and biases, or components, mixing and content biases.

    For families whose projections are not fused.
    """
    family = family_of(model)
    assert not family.fused
    parts: dict[int, Tensor] = {}
    for attention in attentions(model, family):
        if not attention.remaining:
            continue
        module = attention.module
        chosen = [
            *module.get_submodule(family.query).parameters(),
            *module.get_submodule(family.key).parameters(),
        ]
        if isinstance(module, CollaborativeAttention):
            chosen += [module.mixing, module.content]
        parts |= {id(parameter): parameter for parameter in chosen}
    return sum(parameter.numel() for parameter in parts.values())


def _rows(projection: nn.Module) -> Float[Tensor, "output input"]:
    assert isinstance(projection, nn.Linear | Conv1D)
    weight: Tensor = projection.weight
    return weight.T if input_dim(projection) == 0 else weight


def _after_norm(module: nn.Module, name: str) -> Tensor | None:
    """The rows that are used of those that a norm over all heads has gone over; `None`: all."""
    norm = module.get_submodule(name)
    return norm.get_buffer("chosen_rows") if hasattr(norm, "chosen_rows") else None
