"""Modules that replace attention modules whose heads were all cut, and the hooks that others put on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook, _WrappedHook
from transformers import PreTrainedModel
from transformers.utils import output_capturing

from mtl.errors import InputError


class NoHeads(nn.Module):
    """An attention module without heads: an empty output, with caches and biases kept in order.

    Args:
        attention: the module that it replaces.
        output: the output projection without inputs.
        output_name: its name in that module; empty: it lies outside.
        hands_on_bias: whether layers hand on a bias by relative position (T5).
        record: the model output in which its probabilities are returned, for 0 heads; empty: the layer around
            it hands them to transformers.
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
        self.config = getattr(attention, "config", None)
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
        encoder_hidden_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        layer_past: Any = None,
        **__: object,
    ) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor | None]:
        """An empty context (no features), or the output projection's bias if the projection is inside.

        Then, where layers hand it on, the bias by relative position; last, probabilities of no heads, which
        the model's output has where it has those of other layers.
        """
        cache = layer_past if past_key_values is None else past_key_values
        context = hidden_states[..., :0]
        given = self.get_submodule(self.output_name)(context) if self.output_name else context
        if self.hands_on_bias and position_bias is None:
            position_bias = first_bias(self.__dict__["attention"], hidden_states, cache)
        source = encoder_hidden_states if key_value_states is None else key_value_states  # UMT5, all others
        if cache is not None and source is None:
            # Models read from the first layer's cache how many positions they have seen. An empty cache would
            # count as none, so it gets one number per position.
            cache = getattr(cache, "self_attention_cache", cache)
            seen = hidden_states.new_zeros(len(hidden_states), 1, hidden_states.shape[1], 1)
            cache.update(seen, seen, self.layer_idx)
        source = hidden_states if source is None else source
        probabilities = hidden_states.new_zeros(len(context), 0, context.shape[1], source.shape[1])
        chosen = getattr(self.config, "_attn_implementation", None) or ""
        returned = None if chosen.startswith(_WITHOUT_PROBABILITIES) else probabilities
        if self.hands_on_bias:
            return given, position_bias, returned
        if not self.record:
            return given, returned
        if returned is not None:
            record_probabilities(self.record, returned)
        return given, probabilities


_WITHOUT_PROBABILITIES = ("sdpa", "flash")
"""How the names of attention functions begin that compute no probabilities."""


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
    """Gives a module the part of the bias for its own heads, and the next layer the bias of all `heads`.

    The call's own arguments keep the bias meanwhile, since threads may call the module at once.
    """

    def __init__(self, heads: int) -> None:
        self.heads = heads

    def before(
        self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bias = named.get("position_bias")
        if bias is None:
            bias = first_bias(module, inputs[0], named.get("past_key_values"))
        if bias is None:  # cross attention has none
            return inputs, named
        of_own = bias[:, module.get_buffer("bias_heads")]
        return inputs, named | {"position_bias": of_own, _OF_ALL_HEADS: bias}

    def after(
        self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        hidden, bias, *rest = output
        of_all_heads = named.get(_OF_ALL_HEADS)
        if of_all_heads is None:  # zeros, the same for all heads
            of_all_heads = bias[:, :1].expand(-1, self.heads, -1, -1)
        return hidden, of_all_heads, *rest


_OF_ALL_HEADS = "position_bias_of_all_heads"
"""An argument that the module hands on to the attention function, which ignores it."""


def first_bias(module: nn.Module, hidden: Tensor, cache: Any) -> Tensor | None:
    """The bias of all heads, as the attention module of a T5 stack's first layer computes it; else `None`."""
    attention: Any = module
    if not attention.has_relative_attention_bias:
        return None
    past, queries = 0, hidden.shape[1]
    keys = queries
    if cache is not None:
        past = cache.get_seq_length(attention.layer_idx)
        # A static cache has all keys from the start.
        keys, _ = cache.get_mask_sizes(queries, attention.layer_idx)
    bias: Tensor = attention.compute_bias(queries, keys, device=hidden.device, past_seen_tokens=past)
    return bias


def record_probabilities(output: str, probabilities: Float[Tensor, "row head subword source"]) -> None:
    """Append to the model output of this name, in a forward pass that was asked for it.

    transformers collects probabilities by hooks on its own attention classes. A hook of that kind on another
    module, from `install_output_capuring_hook`, is a local function, with which no model can be pickled.
    """
    if torch.compiler.is_compiling():  # the list of outputs cannot be traced
        return
    collected = output_capturing._active_collector.get()
    if collected is not None and output in collected:
        collected[output].append(probabilities)


def collected_around(model: nn.Module, attention: nn.Module, output: str) -> bool:
    """Whether transformers collects the model output of this name at the module around the attention (T5)."""
    [path] = [name for name, child in model.named_modules() if child is attention]
    around = model.get_submodule(path.rpartition(".")[0])
    specs = (getattr(part, "_can_record_outputs", None) or {} for part in model.modules())
    kinds = (getattr(spec.get(output), "target_class", None) for spec in specs)
    return any(kind is not None and isinstance(around, kind) for kind in kinds)


_KINDS = tuple(name for name in vars(nn.Module()) if "_hook" in name)
"""The attributes in which torch keeps a module's hooks and their flags."""
_OURS = (
    "mtl.heads.replaced", "mtl.heads.select", "mtl.heads.attentions",
    "transformers.utils.output_capturing",
)  # fmt: skip
"""The modules whose hooks belong to an attention: its replacement does their work itself."""


def replace_module(model: nn.Module, module: nn.Module, replacement: nn.Module) -> None:
    """Put the replacement in the module's place, with the module's hooks; their handles still remove them."""
    [path] = [name for name, child in model.named_modules() if child is module]
    for name in _KINDS:
        hooks = vars(module)[name]
        for key, hook in list(hooks.items() if isinstance(hooks, dict) else ()):
            if _is_ours(hook):
                del hooks[key]
            elif isinstance(hook, _WrappedHook) and hook.with_module:
                hooks[key] = _WrappedHook(hook.hook, replacement)
        setattr(replacement, name, hooks)
    model.set_submodule(path, replacement)


def require_replaceable(
    model: PreTrainedModel, replaced: Iterable[nn.Module], gone: Iterable[nn.Module], function: str
) -> None:
    """Raise `InputError` if a module in `gone` has hooks, or any module has a `forward` of its own."""
    paths = {module: path for path, module in model.named_modules()}
    going = list(gone)
    for module in going:
        if _has_hooks(module):
            raise InputError(
                f"{function}: {paths[module]} has hooks, and will be gone afterwards: remove them first"
            )
    for module in (*replaced, *going):
        if "forward" in vars(module):
            raise InputError(
                f"{function}: {paths[module]} is to be replaced, and somebody has set its forward function: "
                "restore that of its class first (del module.forward)"
            )


def is_watched(module: nn.Module) -> bool:
    """Whether functions of others would not run if the module were called without being computed.

    These are hooks on its parts or on all modules, and a `forward` that somebody (but accelerate) has set.
    """
    return bool(_has_any_global_hook()) or any(
        (part is not module and _has_hooks(part))
        or ("forward" in vars(part) and not hasattr(part, "_hf_hook"))
        for part in module.modules()
    )


def _has_hooks(module: nn.Module) -> bool:
    kinds = [hooks for name in _KINDS if isinstance(hooks := vars(module)[name], dict)]
    # Some values are flags of hooks.
    return any(callable(hook) and not _is_ours(hook) for hooks in kinds for hook in hooks.values())


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(_OURS)
