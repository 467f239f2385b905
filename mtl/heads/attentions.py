"""Where a model keeps its attention modules and their output projections, and the heads still in them.

Its configuration records what was done to its heads. Every site has one record. Models made of several (CLIP)
keep it in the configuration of the part that has the site, which is the same whether the part or the whole
model is used. Stacks of T5 have copies of the model's configuration; what is done to the model is written in
all of them.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from mtl.errors import InputError
from mtl.features import added
from mtl.heads.arguments import heads_by_layer, number_of_key, short_text, whole_number
from mtl.heads.families import family_of, group_size, layer_numbers, number_at, stack_config, width_read_by
from mtl.heads.family_table import FAMILIES, Family
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


def recorded_cuts(config: PretrainedConfig, family: Family | None = None) -> dict[int, list[int]]:
    """The heads that have been cut out of each site, in the numbering of the uncut model.

    `family` is the model's row, if it is not that of the table. A configuration that was saved has strings as
    keys. Raises `InputError` for a record that is none, as the functions below do.
    """
    return heads_by_layer(recorded_by_site(config, family, "pruned_heads"), "pruned_heads")


def recorded_keys(config: PretrainedConfig, family: Family | None = None) -> dict[int, tuple[int, ...]]:
    """At the sites of grouped queries that were cut, the number of each head's key and value."""
    found = {}
    for site, keys in recorded_by_site(config, family, "keys_of_heads").items():
        if not isinstance(keys, list | tuple):
            raise InputError(
                f"keys_of_heads[{site}]={short_text(keys)}: use a list of numbers, one for each head"
            )
        found[site] = tuple(whole_number(key, f"a key of keys_of_heads[{site}]", 0) for key in keys)
    return found


def record_keys(model: PreTrainedModel, family: Family, keys: Mapping[int, Sequence[int]]) -> None:
    """Record which keys and values the heads of some sites use, in models with grouped queries."""
    stack = family.stacks[0]
    group, name = group_size(model.config, type(model).__name__, stack), type(model).__name__
    if group == 1:
        return
    records = recorded_keys(model.config, family) | {site: tuple(numbers) for site, numbers in keys.items()}
    uncut = tuple(head // group for head in range(number_at(model.config, stack, "heads", name)))
    kept = {site: list(numbers) for site, numbers in sorted(records.items()) if numbers and numbers != uncut}
    record(model, family, "keys_of_heads", kept)


def recorded_by_site(config: PretrainedConfig, family: Family | None, name: str) -> dict[int, Any]:
    """The records of one kind by site, from the configuration and those of its parts."""
    found, first = _entries(config, name), 0
    row = FAMILIES.get(config.model_type) if family is None else family
    if row is None or not any(stack.config for stack in row.stacks):
        return found
    for stack in row.stacks:
        if stack.config and isinstance(part := stack_config(config, stack), PretrainedConfig):
            found |= {first + layer: value for layer, value in _entries(part, name).items()}
        first += len(layer_numbers(config, row, stack, config.model_type))
    return found


def _entries(config: PretrainedConfig, name: str) -> dict[int, Any]:
    recorded = getattr(config, name, None) or {}
    if not isinstance(recorded, Mapping):
        raise InputError(f"{name}={short_text(recorded)}: use a mapping from layers, such as {{0: …}}")
    return {number_of_key(site, f"a layer of {name}"): value for site, value in recorded.items()}


def record(model: PreTrainedModel, family: Family, name: str, values: Mapping[int, Any]) -> None:
    """Write what was done to the heads of each site in every configuration that describes it."""
    own = model.config
    sites = [place.site for place in site_places(own, family, type(model).__name__)]
    by_site = {sites[number]: value for number, value in sorted(values.items())}
    stacks = (part.config for part in model.modules() if isinstance(part, PreTrainedModel))
    copies = {id(config): config for config in stacks if config.model_type == own.model_type}
    for config in ({id(own): own} | copies).values():
        places = list(site_places(config, family, type(model).__name__))
        for holder in {id(place.holder): place.holder for place in places}.values():
            here = (place for place in places if place.holder is holder and place.site in by_site)
            entries = {place.key: by_site[place.site] for place in here}
            if entries or getattr(holder, name, None):
                setattr(holder, name, entries)


class SitePlace(NamedTuple):
    """Where a configuration describes a site."""

    site: Site
    heads: int
    """The number of its heads in the uncut model."""
    holder: PretrainedConfig
    """The configuration, or the part of it, that records what is done to the site."""
    key: int
    """The number of the site in that record."""


def site_places(config: PretrainedConfig, family: Family, name: str) -> Iterator[SitePlace]:
    """The sites that a configuration describes, of which an encoder or a decoder alone has a part."""
    first = 0
    for stack in family.stacks:
        layers = len(layer_numbers(config, family, stack, name))
        heads, holder = number_at(config, stack, "heads", name), stack_config(config, stack)
        for layer in range(layers):
            yield SitePlace(Site(stack.kind, layer), heads, holder, layer if stack.config else first + layer)
        first += layers


def give_own_configuration(model: PreTrainedModel) -> None:
    """Give a model whose heads are to change a configuration that no other model has.

    A part of a larger model keeps the configuration that it has in common with it.
    """
    if any(records_of_heads(model.config).values()) or _is_part(model):
        return
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, PretrainedConfig) and id(value) in copies:
                setattr(module, name, copies[id(value)])


def _is_part(model: PreTrainedModel) -> bool:
    """Whether another module holds the model: something has it in a dictionary of nothing but modules."""
    holders = (holder for holder in gc.get_referrers(model) if isinstance(holder, dict))
    return any(all(isinstance(value, nn.Module | None) for value in holder.values()) for holder in holders)


def needs_rebuild(config: PretrainedConfig) -> bool:
    """Whether a saved model's heads were cut or made to share: transformers alone cannot load it."""
    return any(any(records_of_heads(part).values()) for part in parts_of(config).values())


def parts_of(config: PretrainedConfig) -> dict[str, PretrainedConfig]:
    """A configuration (under an empty name) and those of its model's parts, by their keys."""
    inside = {key: getattr(config, key, None) for key in config.sub_configs}
    return {"": config} | {key: part for key, part in inside.items() if isinstance(part, PretrainedConfig)}


def records_of_heads(config: PretrainedConfig, family: Family | None = None) -> dict[str, dict[int, Any]]:
    """What was done to a model's heads, by key: which were cut, which share keys, and what features do."""
    return {key: read(config, family) for key, read in _readers().items()}


@cache
def _readers() -> dict[str, Callable[[PretrainedConfig, Family | None], dict[int, Any]]]:
    of_features = {key: row.read for key, row in added(lambda feature: feature.head_records).items()}
    return {
        "pruned_heads": recorded_cuts,
        "keys_of_heads": recorded_keys,
        **{key: resolve_name(read) for key, read in of_features.items()},
    }
