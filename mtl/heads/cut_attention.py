"""An attention whose heads are cut: the others are selected by index, or a module without heads replaces it.

The hooks that others put on such a module are looked at here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook, _WrappedHook
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils import output_capturing

from mtl.errors import InputError
from mtl.heads.attentions import Attention, has_module, keep_index, keys_of_heads, renumbered, share_keys
from mtl.heads.families import in_features, input_dim, note_shape
from mtl.heads.family_table import Family


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
_OURS = ("mtl.heads.cut_attention", "mtl.heads.attentions", "transformers.utils.output_capturing")
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
