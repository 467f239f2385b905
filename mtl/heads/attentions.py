"""Where a model keeps its attention modules and their output projections, and the heads still in them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from mtl.errors import InputError
from mtl.heads.families import family_of, group_size, layer_numbers, number_at, stack_config, width_read_by
from mtl.heads.family_table import Family
from mtl.heads.records import recorded_cuts
from mtl.probes.sites import Site, layer_name
from mtl.tasks.in_words import counted


class Attention(NamedTuple):
    """The attention at one site of a model: its module, its output projection, and the heads still in it."""

    site: Site
    layer: nn.Module
    """The transformer layer that it belongs to."""
    module: nn.Module
    output: Any
    """An `nn.Linear` or `Conv1D`, maybe with an adapter around it or quantised (`require_plain`)."""
    output_path: str
    """The projection's path below `module`; empty: it lies outside."""
    remaining: tuple[int, ...]
    """The numbers of the heads still in it, ascending."""
    heads: int
    """How many heads it has in the uncut model."""
    size: int
    """The width of a head's output."""
    caller: nn.Module
    """The part of the model that calls the layers."""

    @property
    def record(self) -> str:
        """The output of the model that has the attention's probabilities."""
        return "cross_attentions" if self.site.attention == "cross" else "attentions"


def attentions(model: PreTrainedModel, family: Family) -> list[Attention]:
    """The attention at every site, by stack and layer; a module that layers share is listed for each of them.

    Raises `InputError` for a model that does not fit its row.
    """
    config, name = model.config, type(model).__name__
    gone = recorded_cuts(config, family)
    group_size(config, name, family.stacks[0])  # only for its error
    found, first = [], 0
    there = _paths_of_stacks(model, family)
    for stack in family.stacks:
        layers = layer_numbers(config, family, stack, name)
        heads = number_at(config, stack, "heads", name)
        size = getattr(stack_config(config, stack), "head_dim", None)
        size = size or number_at(config, stack, "width", name) // heads
        path_of = there.get(stack.kind, "")
        of_layers = path_of.partition(".{}")[0]
        for layer, numbers in enumerate(layers if path_of else ()):
            path = path_of.format(*numbers)
            parent = path.rpartition(".")[0]
            inside = "" if stack.output.startswith("^") else stack.output
            of_layer = path_of[: path_of.rindex("{}") + 2].format(*numbers)
            of_output = f"{path}.{inside}" if inside else stack.output.replace("^", parent)
            try:
                block, module, output = map(model.base_model.get_submodule, (of_layer, path, of_output))
            except AttributeError as error:
                _refuse_wrapper(model, (of_layer, path, of_output))
                raise InputError(
                    f"{name} does not fit its row of the table of families "
                    f"({config.model_type!r}, or the one given as family): {error}"
                ) from None
            left = tuple(sorted(set(range(heads)) - set(gone.get(first + layer, ()))))
            width = width_read_by(output)
            if width is None:
                raise InputError(
                    f"{of_output} of {name} is a {type(output).__name__}, which is no linear layer: unwrap "
                    "the model, or merge its adapters, first"
                )
            if width != len(left) * size:
                if width % size == 0:
                    raise InputError(
                        f"{path} of {name} has {counted(width // size, 'head')}, and its "
                        f"configuration records {len(left)}: load what was cut by mtl.load_pruned, "
                        "and give every model a configuration of its own (copy.deepcopy)"
                    )
                raise InputError(
                    f"{path}: its output projection is no linear layer over {counted(len(left), 'head')}; "
                    f"correct its row of the table of families ({config.model_type!r}, or the one given as "
                    "family)"
                )
            site = Site(stack.kind, layer)
            caller = model.base_model.get_submodule(of_layers.rpartition(".")[0])
            found.append(Attention(site, block, module, output, inside, left, heads, size, caller))
        first += len(layers)
    return found


def head_numbers(found: Iterable[Attention]) -> int:
    """How many head numbers a site has: those of the uncut model."""
    return max(attention.heads for attention in found)


def key_groups(model: PreTrainedModel) -> int:
    """The number of groups of heads that share keys and values, over all sites of a model."""
    found = attentions(model, family_of(model))
    keys = [keys_of_heads(attention.module, len(attention.remaining)) for attention in found]
    return sum(max(numbers, default=-1) + 1 for numbers in keys)


def require_read(ran: Iterable[Attention], read: Container[nn.Module]) -> None:
    """Raise `InputError` for an attention that ran and did not call its output projection."""
    for attention in ran:
        if attention.output not in read:
            raise InputError(
                f"{type(attention.module).__name__} of {layer_name(attention.site)} does not call the output "
                "projection that its row of the table of families (or the one given as family) names: the "
                "row is wrong, or a function reads the weights, where heads are out of reach"
            )


def _refuse_wrapper(model: PreTrainedModel, paths: Iterable[str]) -> None:
    """Raise `InputError` if one of the paths ends at a module of another library, which hides the rest."""
    for path in paths:
        module, parts = model.base_model, path.split(".")
        for number, part in enumerate(parts):
            if (inner := getattr(module, part, None)) is None:
                origin = type(module).__module__.partition(".")[0]
                if origin in ("transformers", "torch", "mtl"):
                    break
                raise InputError(
                    f"{'.'.join(parts[:number])} of {type(model).__name__} is a {type(module).__name__} of "
                    f"{origin}, which hides its {part}: unwrap the model, or merge its adapters, first"
                )
            module = inner


def _paths_of_stacks(model: PreTrainedModel, family: Family) -> dict[str, str]:
    """By kind of attention, the path of its module below the base model, for the stacks that the model has.

    Parts of encoder-decoder models have only some stacks (`T5EncoderModel`, `BartForCausalLM`). In a stack by
    itself (`model.get_encoder()`), paths begin at the stack.
    """
    paths = {stack.kind: stack.attention for stack in family.stacks}
    base = model.base_model
    if len({path.partition(".")[0] for path in paths.values()}) == 1:
        return paths

    def have(chosen: dict[str, str]) -> dict[str, str]:
        return {kind: path for kind, path in chosen.items() if has_module(base, path.format(0))}

    if whole := have(paths):
        return whole
    alone = have({kind: path.partition(".")[2] for kind, path in paths.items()})
    # Modules of the encoder and of the decoder have the same paths inside; only the decoder's attends across.
    return {kind: path for kind, path in alone.items() if (kind != "encoder") == ("cross" in alone)} or paths


def has_module(base: nn.Module, path: str) -> bool:
    """Whether there is a module at a path below another."""
    try:
        base.get_submodule(path)
    except AttributeError:
        return False
    return True


def is_whole(model: PreTrainedModel, family: Family) -> bool:
    """Whether the model has the first stack of its family, and all its stacks at the paths in the table."""
    there = _paths_of_stacks(model, family)
    as_stated = all(there[stack.kind] == stack.attention for stack in family.stacks if stack.kind in there)
    return as_stated and family.stacks[0].kind in there


def keys_of_heads(module: nn.Module, heads: int) -> tuple[int, ...]:
    """For each head of the attention, the number of the key and value that it attends with."""
    chosen: tuple[int, ...] | None = getattr(module, "keys_of_heads", None)
    if chosen is not None:
        return chosen
    neighbours = int(getattr(module, "num_key_value_groups", 1))
    return tuple(head // neighbours for head in range(heads))


def renumbered(keys: Iterable[int]) -> tuple[int, ...]:
    """The same sharing with numbers from 0 without gaps, in the order of their first heads."""
    place: dict[int, int] = {}
    return tuple(place.setdefault(key, len(place)) for key in keys)


def share_keys(module: Any, keys: Sequence[int], device: torch.device) -> None:
    """Let each head of the attention use the key and value of this number.

    If equally many neighbours share each of them, the module repeats keys and values itself. Otherwise heads
    get them by index, after the cache, so that neither the model nor the cache holds one twice.
    """
    if not hasattr(module, "num_key_value_groups"):
        return
    neighbours = len(keys) // (max(keys) + 1)
    if list(keys) == [head // neighbours for head in range(len(keys))]:
        module.keys_of_heads = None
        module.num_key_value_groups = neighbours
        if hasattr(module, "key_index"):
            module.register_buffer("key_index", None, persistent=False)
        return
    if not hasattr(module, "key_index"):
        module.register_forward_pre_hook(_hand_out, with_kwargs=True)
    module.keys_of_heads = tuple(keys)
    module.num_key_value_groups = 1
    keep_index(module, "key_index", torch.tensor(list(keys), device="cpu"), device)


def keep_index(module: nn.Module, name: str, index: Int[Tensor, " place"], device: torch.device) -> None:
    """Keep an index as a buffer that is not saved; on the CPU while the model has no memory yet."""
    index = index if device.type == "meta" else index.to(device)
    module.register_buffer(name, index, persistent=False)


def _hand_out(
    module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    index: Tensor | None = module.get_buffer("key_index") if module.keys_of_heads else None
    if index is None:
        return None
    return inputs, named | {"past_key_values": _KeysByIndex(named.get("past_key_values"), index)}


class _KeysByIndex:
    """A cache (or none) that hands an attention module the keys and values by head."""

    def __init__(self, cache: Any, index: Int[Tensor, " head"]) -> None:
        self._cache, self._index = cache, index

    def update(
        self,
        keys: Float[Tensor, "row pair subword size"],
        values: Float[Tensor, "row pair subword size"],
        *given: Any,
        **named: Any,
    ) -> tuple[Float[Tensor, "row head source size"], Float[Tensor, "row head source size"]]:
        """As a cache's, with keys and values for each head."""
        if self._cache is not None:
            keys, values = self._cache.update(keys, values, *given, **named)
        return keys[:, self._index], values[:, self._index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def query_key_parameters(model: PreTrainedModel) -> int:
    """The number of query and key parameters: weights and biases, and what a module of a feature
    has for each head.

    Only for families whose projections are not fused.
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
        chosen += [module.get_parameter(name) for name in getattr(module, "rows_of_heads", ())]
        parts |= {id(parameter): parameter for parameter in chosen}
    return sum(parameter.numel() for parameter in parts.values())
