"""Arcs and arguments by attention: is the word at one end a head's most attended word from the other?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mtl.probes.measures import chance
from mtl.probes.measures.corpus import ProbeSettings
from mtl.probes.measures.items import Items, Placed
from mtl.probes.measures.probe import Probe
from mtl.probes.measures.record import HeadRecords, ragged
from mtl.probes.tables import heads_table as table


class Hits(NamedTuple):
    """Which heads connect which items with their anchors, in each direction."""

    from_anchor: Bool[Tensor, "item layer head"]
    """The anchor attends most to some word of the item."""
    from_item: Bool[Tensor, "item layer head"]
    """Some word of the item attends most to the anchor."""


def hits(attended: Int[Tensor, "query layer head"], items: Placed) -> Hits:
    """Per item, layer and head whether attention leads from the anchor to the item, and back."""
    ahead = attended[items.at_anchor] - items.in_sentence[:, None, None]
    word = ragged(items.start, items.length)
    item = torch.arange(len(items.length), device=word.device).repeat_interleave(items.length)
    arrived = (attended[word] == items.anchor[item][:, None, None]).int()
    if bool((items.length != 1).any()):
        arrived = arrived.new_zeros(ahead.shape).index_add(0, item, arrived)
    return Hits((ahead >= 0) & (ahead < items.length[:, None, None]), arrived > 0)


def columns(root: bool, final: bool, causal: bool = False) -> str:
    """The competing columns, in words; `causal`: only those up to the attending word."""
    return "+".join(["root"] * root + ["words"] + ["final"] * final) + causal * ", none ahead"


class AttentionProbe(Probe):
    """Per label the share of items that a head connects with their anchor, in either direction.

    He & Choi 2021. `root`: the first special token competes for the most attended word (in dependencies, it
    is the anchor of the root's arc). `final`: so does the final special token, and a head that attends most
    to it hits nothing. `causal`: heads see no later words, so only the later end of an arc can attend to the
    other one. The column `choice` says so, and the chance level has the same limit.
    """

    def __init__(
        self,
        task: str,
        items: Items,
        layers: int,
        heads: int,
        *,
        root: bool,
        final: bool,
        causal: bool = False,
    ) -> None:
        self.task, self.items, self.root, self.final, self.causal = task, items, root, final, causal
        self._hit = torch.zeros(len(items.names), layers, heads, dtype=torch.int64)
        self._count = torch.zeros(len(items.names), dtype=torch.int64)

    def update(self, records: HeadRecords) -> None:
        """Add a batch to the counts."""
        items = self.items.within(records)
        hit = hits(records.attended(root=self.root, final=self.final), items)
        self._hit += summed(hit.from_anchor | hit.from_item, items.label, len(self.items.names))
        self._count += torch.bincount(items.label, minlength=len(self.items.names)).cpu()

    def compute(self) -> pl.DataFrame:
        """The measure `attention` and its chance level `attention_offset`."""
        count = self._count.numpy()
        choice = columns(self.root, self.final, self.causal)
        offsets, _ = chance.best_offset(self.items, self.causal)
        return pl.concat(
            [
                table.rows("attention", self.task, self.items.names, shares(self._hit, count), count, choice),
                table.rows("attention_offset", self.task, self.items.names, offsets, count, choice),
            ]
        )


def probes(settings: ProbeSettings) -> Iterator[Probe]:
    """A probe for each task that is probed by attention."""
    for task in settings.corpus.probed_by("attention", settings.tasks):
        yield AttentionProbe(
            task,
            settings.corpus.items[task],
            settings.layers,
            settings.heads,
            root=settings.corpus.targets[task].root,
            final=settings.final_special,
            causal=settings.causal,
        )


def summed(
    hit: Bool[Tensor, "item layer head"], label: Int[Tensor, " item"], labels: int
) -> Int[Tensor, "label layer head"]:
    """Hits per label, on the CPU."""
    # Counts within a batch are exact in float32, which adds faster than integers.
    zeros = torch.zeros(labels, *hit.shape[1:], device=hit.device)
    return zeros.index_add(0, label, hit.float()).long().cpu()


def shares(hit: Int[Tensor, "label layer head"], count: Int[np.ndarray, " label"]) -> np.ndarray:
    """Hits over counts, 0 where nothing was counted."""
    return hit.double().numpy() / np.maximum(count, 1)[:, None, None]
