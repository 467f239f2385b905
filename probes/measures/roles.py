"""Roles of heads after Voita et al. 2019: confident, positional, syntactic, looking at rare words.

Roles are measured at word level, and attention to special tokens is not distributed over the words. For
confident, positional and rare-word heads, only words are queries and keys. For syntactic heads, the first
special token stands for the root: it competes as a key, and is the anchor of the root's arc. With `final`,
the final special token competes, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import torch
from jaxtyping import Int
from torch import Tensor

from mtl.probes.measures import chance
from mtl.probes.measures.attention import columns, hits, shares, summed
from mtl.probes.measures.corpus import ProbeSettings
from mtl.probes.measures.items import Items
from mtl.probes.measures.probe import Probe
from mtl.probes.measures.record import HeadRecords
from mtl.probes.tables import heads_table as table


class ConfidenceProbe(Probe):
    """The mean over words of the attention to the most attended word, from 0 to 1."""

    def __init__(self, task: str, layers: int, heads: int) -> None:
        self.task = task
        self._sum = torch.zeros(layers, heads, dtype=torch.float64)
        self._count = 0

    def update(self, records: HeadRecords) -> None:
        """Add a batch to the counts."""
        self._sum += records.peak[: len(records.row)].double().sum(0).cpu()
        self._count += len(records.row)

    def compute(self) -> pl.DataFrame:
        """The measure `confidence`."""
        value = (self._sum / max(self._count, 1))[None].numpy()
        return table.rows("confidence", self.task, [""], value, np.array([self._count]), "words")


class PositionalProbe(Probe):
    """Per relative position (-5 to 5) the share of words that attend most to the word at it."""

    def __init__(self, task: str, layers: int, heads: int) -> None:
        self.task = task
        self._hit = torch.zeros(len(chance.OFFSETS), layers, heads, dtype=torch.int64)
        self._count = 0

    def update(self, records: HeadRecords) -> None:
        """Add a batch to the counts."""
        words = records.attended(root=False, final=False)[: len(records.row)]
        offset = words - records.positions[:, None, None]
        offset = offset.masked_fill(words < 0, chance.OFFSETS[-1] + 1)
        places = torch.tensor(chance.OFFSETS, device=offset.device)[:, None, None, None]
        self._hit += (offset == places).sum(1).cpu()
        self._count += len(records.row)

    def compute(self) -> pl.DataFrame:
        """The measure `positional`; its labels are offsets with their signs."""
        count = np.full(len(chance.OFFSETS), self._count)
        labels = [f"{offset:+d}" if offset else "0" for offset in chance.OFFSETS]
        return table.rows("positional", self.task, labels, shares(self._hit, count), count, "words")


class SyntacticProbe(Probe):
    """Per relation and direction the share of arcs whose one end attends most to the other."""

    def __init__(
        self, task: str, items: Items, layers: int, heads: int, *, final: bool, causal: bool = False
    ) -> None:
        self.task, self.items, self.final, self.causal = task, items, final, causal
        self._hit = torch.zeros(2, len(items.names), layers, heads, dtype=torch.int64)
        self._count = torch.zeros(len(items.names), dtype=torch.int64)

    def update(self, records: HeadRecords) -> None:
        """Add a batch to the counts."""
        items = self.items.within(records)
        labels = len(self.items.names)
        for turn, hit in enumerate(hits(records.attended(root=True, final=self.final), items)):
            self._hit[turn] += summed(hit, items.label, labels)
        self._count += torch.bincount(items.label, minlength=labels).cpu()

    def compute(self) -> pl.DataFrame:
        """The measure `syntactic` and its chance level `syntactic_offset`, per relation and direction.

        With `causal`, also `syntactic_possible`: the share of arcs that lead back, the only ones that such
        heads can meet.
        """
        count, choice = self._count.numpy(), columns(True, self.final, self.causal)
        frames = []
        by_offsets = chance.offset_hits(self.items, self.causal)
        directions = zip(
            ("to dependent", "to head"), self._hit, by_offsets, chance.possible(self.items), strict=True
        )
        for direction, hit, by_offset, possible in directions:
            labels = [f"{name} {direction}" for name in self.items.names]
            share, _ = chance.best_share(by_offset, self.items)
            frames += [
                table.rows("syntactic", self.task, labels, shares(hit, count), count, choice),
                table.rows("syntactic_offset", self.task, labels, share, count, choice),
            ]
            if self.causal:
                frames.append(table.rows("syntactic_possible", self.task, labels, possible, count, choice))
        return pl.concat(frames)


class RareWordProbe(Probe):
    """The share of words that attend most to their sentence's rarest word, unless that word is frequent.

    `rarest`: per sentence of the corpus the place of that word, -1 if all words are frequent. `choice` names
    the source of the frequencies. `causal`: heads see no later words, so words before the rarest one do not
    count.
    """

    def __init__(
        self,
        task: str,
        rarest: Int[Tensor, " sentence"],
        layers: int,
        heads: int,
        *,
        choice: str = "self",
        causal: bool = False,
    ) -> None:
        self.task, self.rarest, self.causal = task, rarest, causal
        self.choice = choice + causal * ", none ahead"
        self._hit = torch.zeros(layers, heads, dtype=torch.int64)
        self._count = 0

    def update(self, records: HeadRecords) -> None:
        """Add a batch to the counts."""
        rarest = self.rarest[records.sentences.cpu()].to(records.row.device)
        rarest = rarest.repeat_interleave(records.lengths)
        words = records.attended(root=False, final=False)[: len(records.row)]
        counts = rarest >= 0
        if self.causal:
            counts &= records.positions >= rarest
        self._hit += ((words == rarest[:, None, None]) & counts[:, None, None]).sum(0).cpu()
        self._count += int(counts.sum())

    def compute(self) -> pl.DataFrame:
        """The measure `rare_words`."""
        count = np.array([self._count])
        return table.rows("rare_words", self.task, [""], shares(self._hit[None], count), count, self.choice)


def probes(settings: ProbeSettings) -> Iterator[Probe]:
    """The probes of roles that need no annotation, and the syntactic probe of tasks with arcs."""
    mask, layers, heads, corpus = settings.mask, settings.layers, settings.heads, settings.corpus
    causal = settings.causal
    yield ConfidenceProbe(mask, layers, heads)
    yield PositionalProbe(mask, layers, heads)
    yield RareWordProbe(mask, corpus.rarest(), layers, heads, choice=corpus.choice, causal=causal)
    for task in (task for task in settings.tasks if corpus.targets[task].root):
        items = corpus.items[task]
        yield SyntacticProbe(task, items, layers, heads, final=settings.final_special, causal=causal)
