"""Which key and value each head attends with, where several heads share one (grouped queries)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def keys_of_heads(module: nn.Module, heads: int) -> tuple[int, ...]:
    """For each head of the attention, the number of the key and value that it attends with."""
    chosen: tuple[int, ...] | None = getattr(module, "keys_of_heads", None)
    if chosen is not None:
        return chosen
    neighbours = int(getattr(module, "num_key_value_groups", 1))
    return tuple(head // neighbours for head in range(heads))


def numbered(keys: Iterable[int]) -> tuple[int, ...]:
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
