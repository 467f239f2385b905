"""Chance baselines: best fixed offset, majority label, shuffled labels."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.measures.items import Items

OFFSETS = tuple(range(-5, 6))
"""Relative positions of the baseline heads that always look at the same one."""


def offset_hits(items: Items) -> tuple[Bool[np.ndarray, "item offset"], Bool[np.ndarray, "item offset"]]:
    """Which items a head at each fixed offset hits from the anchor, and from a word of the item.

    The root is the word before the first. No item lies outside of its sentence, so that an offset which
    leads there hits nothing.
    """
    offset = torch.tensor(OFFSETS)
    start, end, anchor = (places[:, None] for places in (items.start, items.end, items.anchor))
    ahead, back = anchor + offset, anchor - offset
    return (
        ((ahead >= start) & (ahead < end)).numpy(),
        ((back >= start) & (back < end)).numpy(),
    )


def best_share(
    hit: Bool[np.ndarray, "item offset"], items: Items
) -> tuple[Float[np.ndarray, " label"], Int[np.ndarray, " label"]]:
    """Per label the share that its best offset hits, and that offset (the first on ties)."""
    per_label = np.zeros((len(items.names), len(OFFSETS)))
    np.add.at(per_label, items.label.numpy(), hit)
    share = per_label / np.maximum(items.per_label(), 1)[:, None]
    return share.max(1), np.array(OFFSETS)[share.argmax(1)]


def best_offset(items: Items) -> tuple[Float[np.ndarray, " label"], Int[np.ndarray, " label"]]:
    """The best fixed-offset baseline per label, hits in either direction, and its offset."""
    from_anchor, from_item = offset_hits(items)
    return best_share(from_anchor | from_item, items)


def majority(items: Items, fitted: Items) -> Float[np.ndarray, " label"]:
    """Per label the score of always giving the most frequent label of `fitted`: 1 for that one, else 0."""
    scores = np.zeros(len(items.names))
    if len(fitted):
        scores[fitted.per_label().argmax()] = 1
    return scores


def shuffled(labels: Int[Tensor, " item"], seed: int) -> Int[Tensor, " item"]:
    """The labels in random order."""
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
