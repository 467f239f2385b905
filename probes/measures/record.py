"""What the heads of an encoder did with a batch of sentences, word by word."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

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


def ragged(start: Int[Tensor, " item"], length: Int[Tensor, " item"]) -> Int[Tensor, " _"]:
    """The numbers from `start[i]` to `start[i] + length[i] - 1`, for one i after the other."""
    shift = start - (length.cumsum(0) - length)
    return torch.arange(int(length.sum()), device=start.device) + shift.repeat_interleave(length)
