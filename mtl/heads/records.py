"""What was done to a model's heads, as its configuration records it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from mtl.heads.families import group_size, number_at
from mtl.heads.family_table import Family


def recorded_cuts(config: PretrainedConfig) -> dict[int, list[int]]:
    """The heads that have been cut out of each site, in the numbering of the uncut model.

    A configuration that was saved has strings as keys.
    """
    recorded = getattr(config, "pruned_heads", None) or {}
    return {int(site): sorted(heads) for site, heads in recorded.items()}


def recorded_copies(config: PretrainedConfig) -> dict[int, dict[int, int]]:
    """The copies at each site: the number of each, and the head of the uncut model that it copies."""
    recorded = getattr(config, "cloned_heads", None) or {}
    return {
        int(site): {int(copy): head for copy, head in heads.items()}
        for site, heads in recorded.items()
        if heads
    }


def recorded_keys(config: PretrainedConfig) -> dict[int, tuple[int, ...]]:
    """At the sites of grouped queries that were cut or copied, the number of each head's key and value."""
    recorded = getattr(config, "keys_of_heads", None) or {}
    found = {int(site): tuple(map(int, keys)) for site, keys in recorded.items()}
    # Older folders say how many neighbours share a key, and hold copies where groups were of unequal sizes.
    gone, copies = recorded_cuts(config), recorded_copies(config)
    for site, neighbours in (getattr(config, "heads_sharing_keys", None) or {}).items():
        heads = config.num_attention_heads - len(gone.get(int(site), ())) + len(copies.get(int(site), ()))
        found.setdefault(int(site), tuple(head // int(neighbours) for head in range(heads)))
    return found


def record_keys(model: PreTrainedModel, family: Family, keys: Mapping[int, Sequence[int]]) -> None:
    """Record which keys and values the heads of some sites use, in models with grouped queries."""
    stack = family.stacks[0]
    group, name = group_size(model.config, type(model).__name__, stack), type(model).__name__
    if group == 1:
        return
    records = recorded_keys(model.config) | {site: tuple(numbers) for site, numbers in keys.items()}
    uncut = tuple(head // group for head in range(number_at(model.config, stack, "heads", name)))
    kept = {site: list(numbers) for site, numbers in sorted(records.items()) if numbers and numbers != uncut}
    model.config.keys_of_heads, model.config.heads_sharing_keys = kept, {}


def recorded_components(config: PretrainedConfig) -> dict[int, int]:
    """The number of components that heads share, by collaborative site (`collaborate`)."""
    recorded = getattr(config, "collaborative_components", None) or {}
    return {int(site): int(number) for site, number in recorded.items()}


def needs_rebuild(config: PretrainedConfig) -> bool:
    """Whether a saved model's heads were cut, copied or made to share: transformers alone cannot load it."""
    return any(any(records_of_heads(part)) for part in parts_of(config).values())


def parts_of(config: PretrainedConfig) -> dict[str, PretrainedConfig]:
    """A configuration (under an empty name) and those of its model's parts, by their keys."""
    inside = {key: getattr(config, key, None) for key in config.sub_configs}
    return {"": config} | {key: part for key, part in inside.items() if isinstance(part, PretrainedConfig)}


def records_of_heads(config: PretrainedConfig) -> tuple[dict[int, Any], ...]:
    """What was done to a model's heads: which were cut and copied, and which share keys or components."""
    records = (recorded_cuts, recorded_copies, recorded_keys, recorded_components)
    return tuple(record(config) for record in records)
