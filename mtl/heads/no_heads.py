"""What replaces the attention of a layer that has lost all of its heads."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from mtl.heads.position_bias import first_bias
from mtl.heads.recording import record_probabilities


class NoHeads(nn.Module):
    """An attention module without heads: an empty output, with caches and biases kept in order.

    Args:
        attention: the module that it replaces.
        output: the output projection without inputs.
        output_name: its name in that module; empty: it lies outside.
        hands_on_bias: whether layers hand on a bias by relative position (T5).
        record: the model output in which its probabilities are returned, for 0 heads.
    """

    def __init__(
        self,
        attention: nn.Module,
        output: nn.Module,
        output_name: str,
        hands_on_bias: bool,
        record: str,
    ) -> None:
        super().__init__()
        self.record = record
        self.output_name = output_name
        self.hands_on_bias = hands_on_bias
        number = getattr(attention, "layer_id", None)  # what GPT-Neo calls it
        self.layer_idx: int | None = getattr(attention, "layer_idx", number)
        if output_name:
            # Under its old name, so that paths of parameters stay what they were.
            self.add_module(output_name, output)
        if hands_on_bias:
            if hasattr(attention, "relative_attention_bias"):
                self.add_module("relative_attention_bias", attention.get_submodule("relative_attention_bias"))
            for name in [name for name, _ in attention.named_children() if name != "relative_attention_bias"]:
                delattr(attention, name)
            # Not as a submodule: its only parameters left are the table's, which are this module's already.
            self.__dict__["attention"] = attention
        self.train(attention.training)

    def forward(
        self,
        hidden_states: Float[Tensor, "row subword hidden"],
        *_: object,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        layer_past: Any = None,
        **__: object,
    ) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor | None, Tensor]:
        """An empty context (no features), or the output projection's bias if the projection is inside.

        Then, where layers hand it on, the bias by relative position; last, probabilities of no heads.
        """
        cache = layer_past if past_key_values is None else past_key_values
        context = hidden_states[..., :0]
        given = self.get_submodule(self.output_name)(context) if self.output_name else context
        if self.hands_on_bias and position_bias is None:
            position_bias = first_bias(self.__dict__["attention"], hidden_states, cache)
        if cache is not None and key_value_states is None:
            # Models read from the first layer's cache how many positions they have seen. An empty cache would
            # count as none, so it gets one number per position.
            cache = getattr(cache, "self_attention_cache", cache)
            seen = hidden_states.new_zeros(len(hidden_states), 1, hidden_states.shape[1], 1)
            cache.update(seen, seen, self.layer_idx)
        source = hidden_states if key_value_states is None else key_value_states
        probabilities = hidden_states.new_zeros(len(context), 0, context.shape[1], source.shape[1])
        if self.hands_on_bias:  # the layer around it hands them to transformers, which collects them there
            return given, position_bias, probabilities
        record_probabilities(self.record, probabilities)
        return given, probabilities
