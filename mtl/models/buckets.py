"""Put sentences of nearly equal length into batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from mtl.models.limits import BATCH_PAIRS

_PADDING = 1 / 16
"""The share of `batch_tokens` that may be padding in batches without noise: about the cost of one more batch
(EWT in batches of 1,024 has 10 % fewer positions)."""


def buckets(
    lengths: Sequence[int],
    batch_tokens: int,
    batch_sentences: int | None,
    rng: np.random.Generator | None,
) -> list[tuple[int, ...]]:
    """Indices of sentences, in batches of nearly equal length.

    A batch has at most `batch_tokens` padded encoder positions and `batch_sentences` sentences (`None`: any
    number), and `BATCH_PAIRS` bounds what decoders hold for pairs of words. A sentence that exceeds a bound
    alone is a batch of its own. With `rng`, lengths get noise of up to 10 % and batches are shuffled. Without
    it, batches are deterministic and have little padding (`_PADDING`); the longest come first, so that a lack
    of memory shows at once.
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
    """The indices of sentences by descending length, and the slices of them that are batches (`buckets`)."""
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
    """How many of these sentences, from the first on, make one batch: at least one."""
    first = max(1, int(lengths[0]))
    most = min(batch_tokens // first, BATCH_PAIRS // first**2, batch_sentences or len(lengths), len(lengths))
    # No sentence that follows is longer: noise changes lengths by a factor from 0.9 to 1.1.
    bound = first + first // 4 + 1
    if 1 <= most <= min(batch_tokens // bound, BATCH_PAIRS // bound**2):
        return most
    longest = np.maximum.accumulate(lengths[: max(1, most)])
    held = longest * np.arange(1, len(longest) + 1)
    return max(1, int(((held <= batch_tokens) & (held * longest <= BATCH_PAIRS)).sum()))


def _rows_alike(lengths: Int[np.ndarray, " sentence"], batch_tokens: int) -> int:
    """How many of these sentences, longest first, need padding of at most `_PADDING` of `batch_tokens`."""
    return int((np.cumsum(lengths[0] - lengths) <= _PADDING * batch_tokens).sum())
