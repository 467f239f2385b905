"""The span CRF: all binary bracketings of a sentence as one distribution (Zhang et al. 2020)."""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from numba import njit
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def span_crf_loss(
    scores: Float[Tensor, "batch boundary boundary"],
    lengths: Int[Tensor, " batch"],
    rows: Int[Tensor, " span"],
    starts: Int[Tensor, " span"],
    ends: Int[Tensor, " span"],
) -> Float[Tensor, " batch"]:
    """Minus the log-probability of each sentence's gold bracketing, whose spans are given for the batch."""
    width = scores.shape[1]
    gold = scores.flatten().index_select(0, (rows * width + starts) * width + ends)
    return log_partition(scores, lengths).index_add(0, rows, gold, alpha=-1)


def log_partition(
    scores: Float[Tensor, "batch boundary boundary"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """The log of the summed exponentials of all binary bracketings; its gradient is the marginals.

    `scores[b, i, j]` scores the words i to j - 1 as one bracket; only 0 <= i < j <= length is read.
    """
    return _LogPartition.apply(scores, lengths)


class _LogPartition(Function):
    """Inside-outside, so that the backward pass costs one product and autograd records no chart."""

    @staticmethod
    def forward(
        ctx: Any, scores: Float[Tensor, "batch boundary boundary"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        on_cpu = scores.device.type == "cpu"
        partition, marginals = (inside_outside_numba if on_cpu else inside_outside_torch)(scores, lengths)
        ctx.save_for_backward(marginals)
        return partition

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, " batch"]) -> tuple[Tensor, None]:
        (marginals,) = ctx.saved_tensors
        return gradient[:, None, None] * marginals, None


def inside_outside_numba(
    scores: Float[Tensor, "batch boundary boundary"], lengths: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch boundary boundary"]]:
    """Log partitions and marginals, sentence by sentence on the CPU, in float64 within."""
    partition = torch.zeros(len(scores), dtype=scores.dtype)
    marginals = torch.zeros(scores.shape, dtype=scores.dtype)
    _inside_outside(
        scores.detach().contiguous().numpy(), lengths.numpy(), partition.numpy(), marginals.numpy()
    )
    return partition, marginals


def inside_outside_torch(
    scores: Float[Tensor, "batch boundary boundary"], lengths: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch boundary boundary"]]:
    """Log partitions and marginals on any device: one step per span width, all sentences and starts at once.

    Sums are kept twice, [row start width] and [row end width], so that the splits of all spans of one
    width are two plain slices.
    """
    batch, width, _ = scores.shape
    words = width - 1
    scores = scores.detach()
    boundaries = torch.arange(width, device=scores.device)
    inside = boundaries[None, :, None] < boundaries[None, None, :]
    inside = inside & (boundaries[None, None, :] <= lengths[:, None, None])
    # padding must be finite: it meets weights of zero
    scores = scores.masked_fill(~inside, 0)
    by_start, by_end = scores.new_zeros(batch, width, width), scores.new_zeros(batch, width, width)
    for size in range(1, words + 1):
        sums = scores.diagonal(size, 1, 2)
        if size > 1:
            sums = sums + _splits(by_start, by_end, size).logsumexp(2)
        by_start[:, : width - size, size] = sums
        by_end[:, size:, size] = sums
    rows = torch.arange(batch, device=scores.device)
    partition = by_start[rows, 0, lengths]

    whole = inside & (boundaries[None, :, None] == 0) & (boundaries[None, None, :] == lengths[:, None, None])
    marginals = whole.to(scores.dtype)
    to_start, to_end = torch.zeros_like(by_start), torch.zeros_like(by_end)
    for size in range(words, 0, -1):
        mass = marginals.diagonal(size, 1, 2)
        mass += to_start[:, : width - size, size] + to_end[:, size:, size]
        if size > 1:
            splits = _splits(by_start, by_end, size)
            passed = splits.softmax(2) * mass[:, :, None]
            to_start[:, : width - size, 1:size] += passed
            to_end[:, size:, 1:size] += passed.flip(2)
    return partition, marginals


def _splits(
    by_start: Float[Tensor, "batch boundary width"], by_end: Float[Tensor, "batch boundary width"], size: int
) -> Float[Tensor, "batch start split"]:
    return by_start[:, : by_start.shape[1] - size, 1:size] + by_end[:, size:, 1:size].flip(2)


@njit(cache=True, nogil=True)
@no_type_check
def _inside_outside(scores, lengths, partition, marginals):
    width = scores.shape[1]
    by_start, by_end = np.empty((width, width)), np.empty((width, width))
    mass_by_start, mass_by_end = np.empty((width, width)), np.empty((width, width))
    weights = np.empty(width)
    for row in range(len(scores)):
        length = lengths[row]
        if length == 0:
            continue
        for end in range(1, length + 1):
            by_start[end - 1, end] = by_end[end, end - 1] = scores[row, end - 1, end]
            for start in range(end - 2, -1, -1):
                highest = -np.inf
                for middle in range(start + 1, end):
                    weights[middle] = by_start[start, middle] + by_end[end, middle]
                    highest = max(highest, weights[middle])
                total = 0.0
                for middle in range(start + 1, end):
                    total += np.exp(weights[middle] - highest)
                total = scores[row, start, end] + highest + np.log(total)
                by_start[start, end] = by_end[end, start] = total
        partition[row] = by_start[0, length]

        mass_by_start[: length + 1, : length + 1] = 0.0
        mass_by_end[: length + 1, : length + 1] = 0.0
        mass_by_start[0, length] = 1.0
        for size in range(length, 0, -1):
            for start in range(length - size + 1):
                end = start + size
                mass = mass_by_start[start, end] + mass_by_end[end, start]
                marginals[row, start, end] = mass
                if size == 1 or mass < 1e-12:  # what falls below moves no float32 gradient
                    continue
                splits_total = by_start[start, end] - scores[row, start, end]
                for middle in range(start + 1, end):
                    part = mass * np.exp(by_start[start, middle] + by_end[end, middle] - splits_total)
                    mass_by_start[start, middle] += part
                    mass_by_end[end, middle] += part
