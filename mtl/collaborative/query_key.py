"""The query and key matrices of each head, for every family of the table."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mtl.collaborative.attention import CollaborativeAttention
from mtl.heads.attentions import Attention, keys_of_heads
from mtl.heads.families import input_dim
from mtl.heads.family_table import Family


class QueryKey(NamedTuple):
    """W_Q and W_K of an attention's heads; a head's scores are (X W_Q) (Y W_K)^T before bias and scaling."""

    queries: Float[Tensor, "head input size"]
    keys: Float[Tensor, "head input size"]


def query_key(family: Family, attention: Attention) -> QueryKey:
    """The matrices of the remaining heads, of which there must be at least one.

    Heads that share keys get the same key matrix. Heads of a collaborative attention get its components,
    weighted by the mixing vector in the queries. Norms and rotations after the projections are not included.
    """
    module, heads, size = attention.module, len(attention.remaining), attention.size
    if isinstance(module, CollaborativeAttention):
        queries, keys = module.shared()
        return QueryKey(queries * module.mixing[:, None], keys.expand(heads, -1, -1))
    shared = list(keys_of_heads(module, heads))
    first = _rows(module.get_submodule(family.query))
    if family.fused == "heads":
        by_head = first.unflatten(0, (heads, 3, size))
        queries, keys = by_head[:, 0], by_head[:, 1]
    elif family.fused == "blocks":
        many, few = heads * size, (max(shared) + 1) * size
        queries = first[:many].unflatten(0, (heads, size))
        keys = first[many : many + few].unflatten(0, (-1, size))
    else:
        chosen = [_after_norm(module, name) for name in family.norms_over_heads] or [None, None]
        second = _rows(module.get_submodule(family.key))
        queries, keys = (
            (rows if index is None else rows[index]).unflatten(0, (-1, size))
            for rows, index in zip((first, second), chosen, strict=True)
        )
    return QueryKey(queries.transpose(1, 2), keys[shared].transpose(1, 2))


def query_bias(family: Family, attention: Attention) -> Float[Tensor, "head size"]:
    """The bias of each head's queries, zeros if there is none; only for projections that are not fused."""
    projection = attention.module.get_submodule(family.query)
    assert isinstance(projection, nn.Linear)
    assert not family.fused
    if projection.bias is None:
        return projection.weight.new_zeros(len(attention.remaining), attention.size)
    bias: Tensor = projection.bias
    return bias.unflatten(0, (-1, attention.size))


def _rows(projection: nn.Module) -> Float[Tensor, "output input"]:
    assert isinstance(projection, nn.Linear | Conv1D)
    weight: Tensor = projection.weight
    return weight.T if input_dim(projection) == 0 else weight


def _after_norm(module: nn.Module, name: str) -> Tensor | None:
    """The rows that are used after a norm over all heads (`_choose_after_norm`); `None`: all."""
    norm = module.get_submodule(name)
    return norm.get_buffer("chosen_rows") if hasattr(norm, "chosen_rows") else None
