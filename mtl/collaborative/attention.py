"""Attention whose heads share query and key components, each head with its own weights on them; and the query
and key matrices of each head, for such attention and for every family of the table."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import EncoderDecoderCache
from transformers.pytorch_utils import Conv1D

from mtl.heads.attentions import Attention, keys_of_heads
from mtl.heads.cut_attention import record_probabilities
from mtl.heads.families import input_dim
from mtl.heads.family_table import Family


class CollaborativeAttention(nn.Module):
    """Collaborative attention (Cordonnier et al. 2020), a replacement for a model's own attention module.

    The scores of head h are [(X W_Q diag(m_h)) (Y W_K)^T + 1 (Y v_h)^T] / sqrt(head size) for query positions
    X and key positions Y. W_Q and W_K are shared; the mixing vector m_h is how much of each component the
    head takes; the content bias v_h is what a key's content adds to the scores of every query. Values and
    everything after them are the model's own.

    A decoder caches Y W_K and all Y v_h side by side as the keys of one head. No fused kernel computes these
    scores, so eager attention and SDPA are the same here.

    Args:
        attention: the module to replace; its submodules other than queries and keys are kept.
        names: the attributes of queries, keys and values in that module.
        components: columns of W_Q and W_K.
        heads: the number of heads.
        size: the width of a head's values.
        output: the attribute of the output projection in that module; empty: it lies outside.
        normed: whether the module also adds its input and normalises the sum (ALBERT).
        record: the model output in which its probabilities are returned.
    """

    mixing: nn.Parameter
    content: nn.Parameter
    rows_of_heads = ("mixing", "content")
    """The parameters with a row for each head; queries and keys are those of all heads."""
    not_learned: tuple[str, ...] = ()
    """Parameters that training leaves as they are."""

    def __init__(
        self,
        attention: nn.Module,
        names: tuple[str, str, str],
        components: int,
        heads: int,
        size: int,
        output: str,
        normed: bool,
        record: str,
    ) -> None:
        super().__init__()
        query, key, _ = names
        paired = [attention.get_submodule(name).weight for name in (query, key)]
        for name, child in attention.named_children():
            if name not in (query, key):
                self.add_module(name, child)
        weight, learns = paired[0], any(weight.requires_grad for weight in paired)
        assert isinstance(weight, Tensor)
        place: dict[str, Any] = {"dtype": weight.dtype, "device": weight.device}
        inputs = weight.shape[1]
        for name in (query, key):
            # Not drawn, which would advance torch's generator: they are filled or loaded later.
            shared = nn.utils.skip_init(nn.Linear, inputs, components, bias=False, **place)
            self.add_module(name, shared.requires_grad_(learns))
        self.mixing = nn.Parameter(torch.ones(heads, components, **place), requires_grad=learns)
        """m_h of each head."""
        self.content = nn.Parameter(torch.zeros(heads, inputs, **place), requires_grad=learns)
        """v_h of each head."""
        self.names, self.output, self.normed = names, output, normed
        self.size, self.scaling = size, size**-0.5
        names_of_rate = ("attention_dropout", "dropout_prob", "dropout")
        dropout: Any = next(getattr(attention, name) for name in names_of_rate if hasattr(attention, name))
        self.dropout_rate = float(dropout.p if isinstance(dropout, nn.Dropout) else dropout)
        self.causal = bool(getattr(attention, "is_causal", False))
        """Whether later positions are hidden in a call without a mask."""
        self.layer_idx: int | None = getattr(attention, "layer_idx", None)
        self.train(attention.training)
        self.record = record

    def shared(self) -> tuple[Float[Tensor, "input component"], Float[Tensor, "input component"]]:
        """W_Q and W_K."""
        query, key, _ = (self.get_submodule(name) for name in self.names)
        assert isinstance(query, nn.Linear)
        assert isinstance(key, nn.Linear)
        return query.weight.T, key.weight.T

    def forward(
        self,
        hidden_states: Float[Tensor, "row subword hidden"],
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        key_value_states: Float[Tensor, "row source hidden"] | None = None,
        past_key_values: Any = None,
        is_causal: bool | None = None,
        **_: object,
    ) -> tuple[Tensor, Float[Tensor, "row head subword source"]]:
        """The heads' outputs side by side (projected, if the projection is inside) and the probabilities."""
        query, components = self.get_submodule(self.names[0]), self.mixing.shape[1]
        keys, values = self._cached(hidden_states, key_value_states, past_key_values)
        # One product for all heads: the rows of X W_Q diag(m_h) below each other, against the shared keys.
        queries = query(hidden_states)[:, None] * (self.scaling * self.mixing)[:, None]
        shared, content = keys[:, 0].split([components, len(self.mixing)], dim=-1)
        scores = queries.flatten(1, 2) @ shared.transpose(1, 2)
        scores = scores.unflatten(1, (len(self.mixing), -1))
        scores = scores + self.scaling * content.transpose(1, 2)[:, :, None]
        if position_bias is not None:
            scores = scores + position_bias
        if attention_mask is None and (self.causal if is_causal is None else is_causal):
            attention_mask = _earlier(scores)
        probabilities = _masked(scores, attention_mask).softmax(-1)
        record_probabilities(self.record, probabilities)
        weights = functional.dropout(probabilities, self.dropout_rate, self.training)
        context = (weights.to(values.dtype) @ values).transpose(1, 2)
        context = context.reshape(*hidden_states.shape[:-1], -1)
        if self.output:
            context = self.get_submodule(self.output)(context)
        if self.normed:
            dropped = self.get_submodule("output_dropout")(context)
            context = self.get_submodule("LayerNorm")(hidden_states + dropped)
        return context, probabilities

    def _cached(
        self, hidden: Tensor, source: Tensor | None, cache: Any
    ) -> tuple[Float[Tensor, "row 1 source width"], Float[Tensor, "row head source size"]]:
        """Keys with their content biases, and values, of all positions so far.

        In cross attention they are computed once, since the source does not grow.
        """
        of_kind = cache
        if isinstance(cache, EncoderDecoderCache):
            of_kind = cache.self_attention_cache if source is None else cache.cross_attention_cache
            if source is not None and cache.is_updated.get(self.layer_idx):
                layer = of_kind.layers[self.layer_idx]
                return layer.keys, layer.values
        _, key, value = (self.get_submodule(name) for name in self.names)
        attended = hidden if source is None else source
        keys = torch.cat([key(attended), functional.linear(attended, self.content)], dim=-1)[:, None]
        values = value(attended).unflatten(-1, (-1, self.size)).transpose(1, 2)
        if of_kind is not None:
            keys, values = of_kind.update(keys, values, self.layer_idx)
            if source is not None and isinstance(cache, EncoderDecoderCache):
                cache.is_updated[self.layer_idx] = True
        return keys, values


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


def _earlier(scores: Float[Tensor, "row head subword source"]) -> Bool[Tensor, "1 1 subword source"]:
    """Which keys are no later than each query; the last query is at the position of the last key."""
    queries, keys = scores.shape[-2:]
    seen = torch.ones(queries, keys, dtype=torch.bool, device=scores.device)
    return seen.tril(keys - queries)[None, None]


def _masked(
    scores: Float[Tensor, "row head subword source"],
    mask: Bool[Tensor, "_ _ _ source"] | Float[Tensor, "_ _ _ source"] | None,
) -> Float[Tensor, "row head subword source"]:
    """Scores under a model's attention mask: false, or a large negative number, at hidden positions."""
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores + mask


def _rows(projection: nn.Module) -> Float[Tensor, "output input"]:
    assert isinstance(projection, nn.Linear | Conv1D)
    weight: Tensor = projection.weight
    return weight.T if input_dim(projection) == 0 else weight


def _after_norm(module: nn.Module, name: str) -> Tensor | None:
    """The rows that are used after a norm over all heads (`_choose_after_norm`); `None`: all."""
    norm = module.get_submodule(name)
    return norm.get_buffer("chosen_rows") if hasattr(norm, "chosen_rows") else None
