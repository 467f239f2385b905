"""Chance levels: the best fixed offset, the majority label, shuffled labels."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mtl.probes.measures.items import Items

OFFSETS = tuple(range(-5, 6))
"""The relative positions of baseline heads, each of which always looks at the same one."""


def offset_hits(
    items: Items, causal: bool = False
) -> tuple[Bool[np.ndarray, "item offset"], Bool[np.ndarray, "item offset"]]:
    """The items that a head with each fixed offset hits from the anchor, and from a word of the item.

    The root is the word before the first. No item lies outside its sentence, so an offset that leads there
    hits nothing. `causal`: heads see no later words, so offsets ahead hit nothing either.
    """
    offset = torch.tensor(OFFSETS)
    start, end, anchor = (places[:, None] for places in (items.start, items.end, items.anchor))
    ahead, back = anchor + offset, anchor - offset
    seen = (offset <= 0) if causal else torch.ones(len(OFFSETS), dtype=torch.bool)
    return (
        ((ahead >= start) & (ahead < end) & seen).numpy(),
        ((back >= start) & (back < end) & seen).numpy(),
    )


def possible(
    items: Items,
) -> tuple[Float[np.ndarray, " label"], Float[np.ndarray, " label"]]:
    """Per label the share of items that a head which sees no later words can hit, in each direction.

    It can hit from the anchor if a word of the item is before or at the anchor, and from a word of the item
    if the anchor is before or at that word.
    """
    count = np.maximum(items.per_label(), 1)
    from_anchor, from_item = (
        np.bincount(items.label.numpy(), hit.numpy(), len(items.names)) / count
        for hit in (items.start <= items.anchor, items.anchor < items.end)
    )
    return from_anchor, from_item


def best_share(
    hit: Bool[np.ndarray, "item offset"], items: Items
) -> tuple[Float[np.ndarray, " label"], Int[np.ndarray, " label"]]:
    """Per label the share of items that its best offset hits, and that offset (the first on ties)."""
    per_label = np.zeros((len(items.names), len(OFFSETS)))
    np.add.at(per_label, items.label.numpy(), hit)
    share = per_label / np.maximum(items.per_label(), 1)[:, None]
    return share.max(1), np.array(OFFSETS)[share.argmax(1)]


def best_offset(
    items: Items, causal: bool = False
) -> tuple[Float[np.ndarray, " label"], Int[np.ndarray, " label"]]:
    """Per label the share that the best fixed offset hits in either direction, and that offset."""
    from_anchor, from_item = offset_hits(items, causal)
    return best_share(from_anchor | from_item, items)


def majority(items: Items, fitted: Items) -> Float[np.ndarray, " label"]:
    """Per label the score of always giving the most frequent label of `fitted`: 1 for that label, else 0."""
    scores = np.zeros(len(items.names))
    if len(fitted):
        scores[fitted.per_label().argmax()] = 1
    return scores


def shuffled(labels: Int[Tensor, " item"], seed: int) -> Int[Tensor, " item"]:
    """The labels in random order."""
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
