"""Biases by relative position that all layers share, in layers that have lost heads."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def choose_given_bias(module: nn.Module) -> None:
    """Let an attention module that is given the bias of all heads use the part of its own heads (MPNet).

    Their numbers are in its buffer `bias_heads`.
    """
    module.register_forward_pre_hook(_choose)


def _choose(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    hidden, mask, bias, *rest = inputs
    return hidden, mask, bias[:, module.get_buffer("bias_heads")], *rest


def hand_on_whole_bias(module: nn.Module, heads: int) -> None:
    """Let an attention module of T5 use the bias of its own heads, and hand on the bias of all `heads`.

    The first layer computes the bias. Its table keeps the rows of heads that were cut out of it, since other
    layers may still have them. The numbers of the module's own heads are in its buffer `bias_heads`.
    """
    hand_on = _WholeBias(heads)
    module.register_forward_pre_hook(hand_on.before, with_kwargs=True)
    module.register_forward_hook(hand_on.after, with_kwargs=True)


class _WholeBias:
    """Holds the bias of all heads while a module computes with the part of its own heads."""

    def __init__(self, heads: int) -> None:
        self.heads = heads
        self.bias: Tensor | None = None

    def before(
        self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.bias = named.get("position_bias")
        if self.bias is None:
            self.bias = first_bias(module, inputs[0], named.get("past_key_values"))
        if self.bias is not None:
            named = named | {"position_bias": self.bias[:, module.get_buffer("bias_heads")]}
        return inputs, named

    def after(
        self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        hidden, bias, *rest = output
        of_all_heads, self.bias = self.bias, None
        if of_all_heads is None:  # cross attention has none: zeros, the same for all heads
            of_all_heads = bias[:, :1].expand(-1, self.heads, -1, -1)
        return hidden, of_all_heads, *rest


def first_bias(module: nn.Module, hidden: Tensor, cache: Any) -> Tensor | None:
    """The bias of all heads, as the attention module of a T5 stack's first layer computes it; else `None`."""
    attention: Any = module
    if not attention.has_relative_attention_bias:
        return None
    past = 0 if cache is None else cache.get_seq_length(attention.layer_idx)
    queries = hidden.shape[1]
    bias: Tensor = attention.compute_bias(
        queries, queries + past, device=hidden.device, past_seen_tokens=past
    )
    return bias
