"""Attention whose heads share queries and keys, and weigh their components each in its own way."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from transformers.utils.output_capturing import install_output_capuring_hook


class CollaborativeAttention(nn.Module):
    """Self-attention of Cordonnier et al. 2020, in the place of a model's own.

    The scores of head h are (X W_Q diag(m_h)) (X W_K)^T + 1 (X v_h)^T over the square root of a head's size:
    W_Q and W_K are shared, the mixing vector m_h says how much of each component the head takes, and v_h is
    the bias that content gets regardless of who asks. Values and everything after them are the model's own.

    No fused kernel computes that, so that eager attention and SDPA are the same here.

    Args:
        attention: the module that it replaces, whose submodules it takes over but for queries and keys.
        names: the attributes of queries, keys and values in that module.
        components: columns of W_Q and W_K.
        heads: the heads that are there.
        size: dimensions of a head's values.
        output: the attribute of the output projection in that module; empty: it lies outside.
        normed: whether the module also adds its input and norms (ALBERT).
    """

    mixing: nn.Parameter
    content: nn.Parameter

    def __init__(
        self,
        attention: nn.Module,
        names: tuple[str, str, str],
        components: int,
        heads: int,
        size: int,
        output: str,
        normed: bool,
    ) -> None:
        super().__init__()
        query, key, _ = names
        for name, child in attention.named_children():
            if name not in (query, key):
                self.add_module(name, child)
        weight = attention.get_submodule(query).weight
        assert isinstance(weight, Tensor)
        place: dict[str, Any] = {"dtype": weight.dtype, "device": weight.device}
        inputs = weight.shape[1]
        for name in (query, key):
            self.add_module(name, nn.Linear(inputs, components, bias=False, **place))
        self.mixing = nn.Parameter(torch.ones(heads, components, **place))
        """m_h of each head."""
        self.content = nn.Parameter(torch.zeros(heads, inputs, **place))
        """v_h of each head."""
        self.names, self.output, self.normed = names, output, normed
        self.size, self.scaling = size, size**-0.5
        dropout = getattr(attention, "attention_dropout", None) or attention.dropout
        assert isinstance(dropout, nn.Dropout)
        self.dropout_rate = dropout.p
        self.train(attention.training)
        # Models hand out the probabilities of modules of their own class.
        install_output_capuring_hook(self, "attentions", 1)

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
        **_: object,
    ) -> tuple[Tensor, Float[Tensor, "row head subword subword"]]:
        """The heads' outputs side by side, or projected, and their probabilities."""
        query, key, value = (self.get_submodule(name) for name in self.names)
        # One product for all heads: the rows of X W_Q diag(m_h) below each other, against the shared keys.
        queries = query(hidden_states)[:, None] * (self.scaling * self.mixing)[:, None]
        scores = queries.flatten(1, 2) @ key(hidden_states).transpose(1, 2)
        scores = scores.unflatten(1, (len(self.mixing), -1))
        content = functional.linear(hidden_states, self.scaling * self.content)
        scores = scores + content.transpose(1, 2)[:, :, None]
        if position_bias is not None:
            scores = scores + position_bias
        probabilities = _masked(scores, attention_mask).softmax(-1)
        values = value(hidden_states).unflatten(-1, (-1, self.size)).transpose(1, 2)
        kept = functional.dropout(probabilities, self.dropout_rate, self.training)
        context = (kept.to(values.dtype) @ values).transpose(1, 2)
        context = context.reshape(*hidden_states.shape[:-1], -1)
        if self.output:
            context = self.get_submodule(self.output)(context)
        if self.normed:
            dropped = self.get_submodule("output_dropout")(context)
            context = self.get_submodule("LayerNorm")(hidden_states + dropped)
        return context, probabilities


def _masked(
    scores: Float[Tensor, "row head subword subword"],
    mask: Bool[Tensor, "row _ _ subword"] | Float[Tensor, "row _ _ subword"] | None,
) -> Float[Tensor, "row head subword subword"]:
    """Scores under a mask as models hand it on: false or a large negative number at what is not seen."""
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores + mask
