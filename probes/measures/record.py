"""What the heads of an encoder did with a batch of sentences, word by word."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

ROOT, FINAL, NOTHING = -1, -2, -3
"""Instead of an attended word: the first special token (which represents the root), the final special token,
nothing (the head has been cut out)."""


@dataclass(frozen=True, slots=True)
class HeadRecords:
    """Per layer and head what each word attends to, and each head's output per word.

    Attention is at word level: summed over the pieces of an attended word, averaged over those of the
    attending word (Clark et al. 2019). In decoder-only models only the last piece of a word attends and is
    observed, since no other piece has seen the whole word. Words of all sentences follow each other,
    without padding; the *queries* are those words and after them the first special token of each row
    (window) of the batch. If a sentence has several windows, a word attends and is observed in the window
    that owns it, and it attends only to the words and special tokens of that window.
    """

    sentences: Int[Tensor, " batch"]
    """The sentences' numbers in the corpus."""
    lengths: Int[Tensor, " batch"]
    """Words per sentence."""
    row: Int[Tensor, " word"]
    """The row that owns each word."""
    word: Int[Tensor, "query layer head"]
    """The most attended word (from 0, within the sentence; the first on ties), or `NOTHING`."""
    peak: Float[Tensor, "query layer head"]
    """The attention to it."""
    root: Float[Tensor, "query layer head"]
    """The attention to the first special token; -1 where the encoder has none."""
    final: Float[Tensor, "query layer head"]
    """The attention to the final special token; -1 where the encoder has none."""
    outputs: Float[Tensor, "word layer head head_dim"]
    """What each head hands to the output projection, averaged over the word's pieces."""
    projected: Float[Tensor, "word layer draw head_dim"]
    """Random projections of what the layer's attention reads, averaged over the word's pieces."""

    def attended(self, *, root: bool, final: bool) -> Int[Tensor, "query layer head"]:
        """What each query attends to most among the words and, if so chosen, the special tokens.

        Ties go to the first column: root, words, final.
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
        """The place of each sentence's first word."""
        return self.lengths.cumsum(0) - self.lengths

    @property
    def positions(self) -> Int[Tensor, " word"]:
        """Each word's place in its sentence, from 0."""
        return ragged(torch.zeros_like(self.lengths), self.lengths)

    @property
    def nbytes(self) -> int:
        """The memory that the records take."""
        tensors = (self.word, self.peak, self.root, self.final, self.outputs, self.projected)
        return sum(tensor.nbytes for tensor in tensors)


def ragged(start: Int[Tensor, " item"], length: Int[Tensor, " item"]) -> Int[Tensor, " _"]:
    """The numbers `start[i] .. start[i] + length[i] - 1`, for all i one after the other."""
    shift = start - (length.cumsum(0) - length)
    return torch.arange(int(length.sum()), device=start.device) + shift.repeat_interleave(length)
