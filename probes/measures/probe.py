"""The interface of probes: what heads did with a batch, word by word, and the passes over such records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor


class Probe(ABC):
    """A measurement without parameters, summed over batches of records in any order."""

    @abstractmethod
    def update(self, records: HeadRecords) -> None:
        """Add a batch to the counts."""

    @abstractmethod
    def compute(self) -> pl.DataFrame:
        """The rows of the tidy table, from the counts so far."""


class FittedProbe(Probe):
    """A probe that must see all records to which it is fitted before it can count any."""

    @abstractmethod
    def fit(self, records: HeadRecords) -> None:
        """Add a batch to what the probe is fitted to."""


ROOT, FINAL, NOTHING = -1, -2, -3
"""Values in place of an attended word: the first special token (which stands for the root), the final special
token, nothing (the head was cut out)."""


@dataclass(frozen=True, slots=True)
class HeadRecords:
    """Per layer and head, what each word attends to, and the head's output for each word.

    Attention is at word level: it is summed over the pieces of an attended word, and averaged over those of
    the attending word (Clark et al. 2019). In decoder-only models, only the last piece of a word attends and
    is observed, since no other piece has seen the whole word. Words of all sentences follow each other
    without padding. The *queries* are these words, and after them the first special token of each row
    (window) of the batch. If a sentence has several windows, a word attends and is observed in the window
    that owns it, and attends only to the words and special tokens of that window.

    `sentences`, `lengths` and `row` are on the CPU, so that nothing waits for the device of the others.
    """

    sentences: Int[Tensor, " batch"]
    """The numbers of the sentences in the corpus."""
    lengths: Int[Tensor, " batch"]
    """The number of words of each sentence."""
    row: Int[Tensor, " word"]
    """The row of the batch that owns each word."""
    word: Int[Tensor, "query layer head"]
    """The most attended word (from 0, within the sentence; the first on ties), or `NOTHING`."""
    peak: Float[Tensor, "query layer head"]
    """The attention to the most attended word."""
    root: Float[Tensor, "query layer head"]
    """The attention to the first special token; -1 if the encoder has none."""
    final: Float[Tensor, "query layer head"]
    """The attention to the final special token; -1 if the encoder has none."""
    outputs: Float[Tensor, "word layer head head_dim"]
    """What each head passes to the output projection, averaged over the word's pieces."""
    projected: Float[Tensor, "word layer draw head_dim"]
    """Random projections of what the layer's attention reads, averaged over the word's pieces."""

    def attended(self, *, root: bool, final: bool) -> Int[Tensor, "query layer head"]:
        """What each query attends to most, among the words and, if chosen, the special tokens.

        Ties go to the first column, in the order root, words, final.
        """
        chosen, best = self.word, self.peak
        if root:
            wins = self.root >= best
            chosen, best = chosen.masked_fill(wins, ROOT), torch.where(wins, self.root, best)
        if final:
            chosen = chosen.masked_fill(self.final > best, FINAL)
        return chosen.masked_fill(self.word == NOTHING, NOTHING) if root or final else chosen

    @property
    def starts(self) -> Int[Tensor, " batch"]:
        """The index of each sentence's first word among the words of the batch."""
        return self.lengths.cumsum(0) - self.lengths

    @property
    def positions(self) -> Int[Tensor, " word"]:
        """Each word's place in its sentence, from 0."""
        return ragged(torch.zeros_like(self.lengths), self.lengths)

    @property
    def nbytes(self) -> int:
        """The memory that the records take, in bytes."""
        tensors = (self.word, self.peak, self.root, self.final, self.outputs, self.projected)
        return sum(tensor.nbytes for tensor in tensors)


def added_counts(total: Tensor, counts: Tensor) -> Tensor:
    """The sum, where `counts` are: totals stay on a GPU until they are read, and no batch waits for it."""
    return counts + total.to(counts.device, non_blocking=True)


def ragged(start: Int[Tensor, " item"], length: Int[Tensor, " item"]) -> Int[Tensor, " _"]:
    """The numbers from `start[i]` to `start[i] + length[i] - 1`, for one i after the other; on the CPU."""
    shift = start - (length.cumsum(0) - length)
    return torch.arange(int(length.sum())) + shift.repeat_interleave(length)


KEPT = 2**30
"""Default bound, in bytes, on the records that are kept from the first pass for the second one."""


def run_probes(
    batches: int,
    observe: Callable[[int], HeadRecords],
    probes: Sequence[Probe],
    fitted_elsewhere: Iterable[HeadRecords] | None = None,
    kept: int = KEPT,
) -> None:
    """Update every probe with every batch of a corpus; fitted probes are fitted first.

    `observe` returns the records of a batch by its number. Probes are fitted to `fitted_elsewhere`, or to the
    same batches in a first pass. Records of the first pass are kept for the second one as long as they take
    at most `kept` bytes together; the other batches are observed again. Values do not depend on this bound.
    """
    fitting = [probe for probe in probes if isinstance(probe, FittedProbe)]
    ready = [probe for probe in probes if probe not in fitting]
    if fitted_elsewhere is not None:
        for records in fitted_elsewhere:
            fit(fitting, records)
        ready, fitting = list(probes), []
    store: dict[int, HeadRecords] = {}
    taken = 0
    for batch in range(batches):
        records = observe(batch)
        update(ready, records)
        fit(fitting, records)
        if fitting and taken + records.nbytes <= kept:
            store[batch] = records
            taken += records.nbytes
    if fitting:
        for batch in range(batches):
            update(fitting, store.pop(batch) if batch in store else observe(batch))


def fit(probes: Sequence[FittedProbe], records: HeadRecords) -> None:
    """Fit every probe to a batch."""
    for probe in probes:
        probe.fit(records)


def update(probes: Sequence[Probe], records: HeadRecords) -> None:
    """Update every probe with a batch."""
    for probe in probes:
        probe.update(records)


DRAWS = 4
"""The number of random projections per layer, over which the score is averaged."""


def random_projections(
    layers: int, hidden: int, head_dim: int, draws: int = DRAWS, seed: int = 0
) -> Float[Tensor, "layer hidden draw head_dim"]:
    """Random matrices with normal entries of variance 1 / hidden, which keep lengths on average.

    The matrices of a layer depend only on the shape of the encoder and the seed. So all runs that start from
    one encoder are compared with the same projections.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(layers, hidden, draws, head_dim, generator=generator) / hidden**0.5
