"""Sentences of nearly equal length, put into batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from mtl.models.limits import BATCH_PAIRS

_PADDING = 1 / 16
"""The share of a batch's budget that may be padding, where batches are not drawn: about what the cost of
another batch is worth (EWT in batches of 1,024 has 10 % fewer positions)."""


def buckets(
    lengths: Sequence[int],
    batch_tokens: int,
    batch_sentences: int | None,
    rng: np.random.Generator | None,
) -> list[tuple[int, ...]]:
    """Indices of sentences, in batches of nearly equal length.

    A batch has at most `batch_tokens` padded encoder positions and `batch_sentences` sentences (`None`: any
    number), and `BATCH_PAIRS` bounds what decoders hold for pairs of words. A sentence that exceeds a bound
    alone is a batch of its own. With `rng` lengths get 10 % of noise and batches are shuffled. Without it the
    batches are deterministic, longest first, so that a lack of memory shows at once, and have little padding
    (`_PADDING`).
    """
    order, batches = bucket_slices(np.asarray(lengths, dtype=np.int64), batch_tokens, batch_sentences, rng)
    indices = order.tolist()
    return [tuple(indices[batch]) for batch in batches]


def bucket_slices(
    lengths: Int[np.ndarray, " sentence"],
    batch_tokens: int,
    batch_sentences: int | None,
    rng: np.random.Generator | None,
) -> tuple[Int[np.ndarray, " sentence"], list[slice]]:
    """The indices of sentences by falling length, and which slices of them are the batches of `buckets`."""
    noise = rng.uniform(0.9, 1.1, len(lengths)) if rng is not None else 1.0
    order = np.argsort(-(lengths * noise), kind="stable")
    falling = lengths[order]
    batches: list[slice] = []
    start = 0
    while start < len(falling):
        rows = _rows(falling[start:], batch_tokens, batch_sentences)
        if rng is None:
            rows = _rows_alike(falling[start : start + rows], batch_tokens)
        end = start + rows
        batches.append(slice(start, end))
        start = end
    if rng is not None:
        batches = [batches[index] for index in rng.permutation(len(batches))]
    return order, batches


def _rows(lengths: Int[np.ndarray, " sentence"], batch_tokens: int, batch_sentences: int | None) -> int:
    """How many of these sentences, from the first on, are one batch: at least one."""
    first = max(1, int(lengths[0]))
    most = min(batch_tokens // first, BATCH_PAIRS // first**2, batch_sentences or len(lengths), len(lengths))
    bound = (
        first + first // 4 + 1
    )  # of what follows: the noise moves lengths by a factor of at most 1.1 / 0.9
    if 1 <= most <= min(batch_tokens // bound, BATCH_PAIRS // bound**2):
        return most
    longest = np.maximum.accumulate(lengths[: max(1, most)])
    held = longest * np.arange(1, len(longest) + 1)
    return max(1, int(((held <= batch_tokens) & (held * longest <= BATCH_PAIRS)).sum()))


def _rows_alike(lengths: Int[np.ndarray, " sentence"], batch_tokens: int) -> int:
    """How many of these sentences, longest first, pad each other by at most `_PADDING` of the budget."""
    return int((np.cumsum(lengths[0] - lengths) <= _PADDING * batch_tokens).sum())
