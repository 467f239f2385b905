"""What was done to a model's heads, as its configuration records it.

Every site has one record. Models made of several (CLIP) keep it in the configuration of the part that has the
site, which is the same whether the part or the whole model is used. Stacks of T5 have copies of the model's
configuration; what is done to the model is written in all of them.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Any, NamedTuple

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from mtl.errors import InputError
from mtl.features import added
from mtl.heads.arguments import heads_by_layer, number_of_key, short_text, whole_number
from mtl.heads.families import group_size, layer_numbers, number_at, stack_config
from mtl.heads.family_table import FAMILIES, Family
from mtl.probes.sites import Site


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
