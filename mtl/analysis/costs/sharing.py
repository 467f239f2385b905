"""The operations and time of a model before and after its heads share components."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from mtl.analysis.costs.timing import alternate, encode, multiply_adds
from mtl.errors import InputError
from mtl.models.modes import in_evaluation_mode
from mtl.models.subwords import Subwords, Tokens
from mtl.models.tapped import TappedModel

BATCH_TOKENS = 1024
"""Positions in a batch whose time is measured: more do not fit into a CPU's caches."""


@dataclass(frozen=True)
class Cost:
    """The cost per sentence of one length; pairs are (before, after)."""

    length: int
    """Positions of a sentence, special ones included."""
    sentences: int
    """Sentences in a batch."""
    multiply_adds: tuple[float, float]
    seconds: tuple[float, float]
    """Medians over rounds in which the models take turns."""


@torch.inference_mode()
def sharing_costs(
    before: TappedModel, after: TappedModel, lengths: Sequence[int], rounds: int, seed: int = 0
) -> list[Cost]:
    """The operations and time of two encoders on the same random subwords, for each length (`check_lengths`).

    Costs do not depend on which subwords are read. All sentences of a batch are equally long.
    """
    costs = []
    with in_evaluation_mode(before), in_evaluation_mode(after):
        for length in lengths:
            batch = random_batch(before, length, seed)
            adds, fewer = (multiply_adds(each, [batch]) / batch.sentences for each in (before, after))
            jobs = {"before": partial(encode, before, [batch]), "after": partial(encode, after, [batch])}
            seconds = alternate(jobs, rounds)
            slow, fast = (statistics.median(seconds[name]) / batch.sentences for name in jobs)
            costs.append(Cost(length, batch.sentences, (adds, fewer), (slow, fast)))
    return costs


def check_lengths(encoder: TappedModel, lengths: Sequence[int]) -> None:
    """Raise `InputError` for lengths that the encoder cannot read."""
    least = len(encoder.tokenizer.prefix) + len(encoder.tokenizer.suffix) + 1
    for length in lengths:
        if not least <= length <= encoder.tokenizer.max_length:
            raise InputError(
                f"lengths: the encoder reads sentences of {least} to {encoder.tokenizer.max_length} "
                f"positions, and {length} is given"
            )


def random_batch(encoder: TappedModel, length: int, seed: int = 0) -> Subwords:
    """A batch of random subwords; every sentence has `length` positions, special ones included."""
    tokenizer = encoder.tokenizer
    pieces = length - len(tokenizer.prefix) - len(tokenizer.suffix)
    generator = np.random.default_rng(seed)
    sentences = max(1, min(64, BATCH_TOKENS // length))
    ids = generator.integers(0, encoder.transformer.config.vocab_size, (sentences, pieces), dtype=np.int32)
    device = next(encoder.parameters()).device
    return tokenizer.collate([Tokens(row, np.ones(pieces, dtype=np.int32)) for row in ids]).to(device)
