"""The span CRF: all binary bracketings of a sentence as one distribution (Zhang et al. 2020).

Partition function and marginals come from numba on the CPU, width by width on other devices, and from supar
where a device has no float64 (Apple's).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Int
from numba import njit
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from mtl.tasks.precision import at_least_float32, has_float64

InsideOutside = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From scores and lengths to log partitions and marginals."""


def span_crf_loss(
    scores: Float[Tensor, "batch boundary boundary"],
    lengths: Int[Tensor, " batch"],
    rows: Int[Tensor, " span"],
    starts: Int[Tensor, " span"],
    ends: Int[Tensor, " span"],
) -> Float[Tensor, " batch"]:
    """Minus the log-probability of each sentence's gold bracketing, in nats.

    `rows`, `starts` and `ends` are the gold spans of all sentences; see `log_partition` for the others.
    """
    scores = at_least_float32(scores)
    width = scores.shape[1]
    gold = scores.flatten().index_select(0, (rows * width + starts) * width + ends)
    return log_partition(scores, lengths).index_add(0, rows, gold, alpha=-1)


def log_partition(
    scores: Float[Tensor, "batch boundary boundary"],
    lengths: Int[Tensor, " batch"],
    inside_outside: InsideOutside | None = None,
) -> Float[Tensor, " batch"]:
    """The log partition function over all binary bracketings; its gradient is the spans' marginals.

    `scores[b, i, j]` scores the words i to j - 1 as one bracket; only 0 <= i < j <= length is read. Lengths
    are at least 1. Scores of less than 32 bits are cast to float32, which is then the type of the result. By
    default `inside_outside` is `by_numba` for scores on the CPU, where it is fastest, `by_supar` on devices
    without float64, and `by_tensors` on others.
    """
    scores = at_least_float32(scores)
    return _LogPartition.apply(scores, lengths, inside_outside or _fastest(scores))


def span_marginals(
    scores: Float[Tensor, "batch boundary boundary"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, "batch boundary boundary"]:
    """The probability that each span is a bracket, without a gradient; 0 where there is no span."""
    return _fastest(scores)(scores, lengths)[1]


def _fastest(scores: Float[Tensor, "batch boundary boundary"]) -> InsideOutside:
    if scores.device.type == "cpu":
        return by_numba
    return by_tensors if has_float64(scores.device) else by_supar


class _LogPartition(Function):
    """Computes the marginals along with the partition, so that the backward pass is one product."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Float[Tensor, "batch boundary boundary"],
        lengths: Int[Tensor, " batch"],
        inside_outside: InsideOutside,
    ) -> Float[Tensor, " batch"]:
        partition, marginals = inside_outside(scores, lengths)
        ctx.save_for_backward(marginals)
        return partition

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, " batch"]) -> tuple[Tensor, None, None]:
        (marginals,) = ctx.saved_tensors
        return gradient[:, None, None] * marginals, None, None


def by_tensors(
    scores: Float[Tensor, "batch boundary boundary"], lengths: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch boundary boundary"]]:
    """Log partitions and marginals on any device, in float64: six operations for all spans of one width.

    Spans beyond a sentence's end are computed, too, from scores of 0, but reach no result.
    """
    boundaries = torch.arange(scores.shape[1], device=scores.device)
    there = (boundaries[:, None] < boundaries) & (boundaries <= lengths[:, None, None])
    inside = torch.where(there, scores.detach().double(), 0.0)
    shares = []  # of all splits in each span's sum, by width
    for size in range(2, scores.shape[1]):
        left, right, spans = _splits(inside, size)
        splits = left + right
        share = splits.log_softmax(2)
        spans += splits[:, :, 0]
        spans -= share[:, :, 0]
        shares.append(share)
    if shares:
        torch._foreach_exp_(shares)
    partition = inside[:, 0].gather(1, lengths[:, None])[:, 0]
    masses = torch.zeros_like(inside)
    masses[:, 0].scatter_(1, lengths[:, None], 1.0)
    for size in range(scores.shape[1] - 1, 1, -1):
        left, right, spans = _splits(masses, size)
        left.addcmul_(shares[size - 2], spans[:, :, None])
        right.addcmul_(shares[size - 2], spans[:, :, None])
    dtype = torch.promote_types(scores.dtype, torch.float32)
    return partition.to(dtype), masses.to(dtype)


def _splits(
    chart: Float[Tensor, "batch boundary boundary"], size: int
) -> tuple[Float[Tensor, "batch span split"], Float[Tensor, "batch span split"], Float[Tensor, "batch span"]]:
    """Views into a contiguous chart: both parts of all splits of the spans of `size` words, and the spans."""
    batch, width, _ = chart.shape
    places, strides = (batch, width - size, size - 1), (width * width, width + 1)
    return (
        chart.as_strided(places, (*strides, 1), 1),
        chart.as_strided(places, (*strides, width), width + size),
        chart.as_strided(places[:2], strides, size),
    )


def by_supar(
    scores: Float[Tensor, "batch boundary boundary"], lengths: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch boundary boundary"]]:
    """The same in float32, by supar's inside algorithm and its gradient."""
    from supar.structs import ConstituencyCRF  # takes seconds: nltk, scikit-learn and supar's own parsers

    boundaries = torch.arange(scores.shape[1], device=scores.device)
    inside = (boundaries[:, None] < boundaries) & (boundaries <= lengths[:, None, None])
    # What supar needs:
    # - Float32: it computes in the type of the scores, and log Z in bf16 is off by whole nats. Autocast
    #   casts none of its operations.
    # - Gradients: its marginals are autograd's gradient, which inference mode forbids, as do its tensors.
    # - A copy: it asks for gradients of the very tensor that it is given.
    # - Zeros beyond a sentence's end: it also adds up the spans there. They do not reach the result, but a
    #   score that is not finite would make the gradient NaN.
    # - No axis of labels, which it would take for separate charts: labels are scored apart from brackets.
    with torch.inference_mode(False):
        chart = at_least_float32(scores.detach())
        crf = ConstituencyCRF(chart.masked_fill(~inside, 0.0), lengths.clone())
        partition, marginals = crf.log_partition.detach(), crf.marginals.detach()
    return partition, marginals


def by_numba(
    scores: Float[Tensor, "batch boundary boundary"], lengths: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch boundary boundary"]]:
    """Log partitions and marginals, sentence by sentence on the CPU; sums are taken in float64."""
    dtype = torch.promote_types(scores.dtype, torch.float32)
    partition = torch.zeros(len(scores), dtype=dtype)
    marginals = torch.zeros(scores.shape, dtype=dtype)
    _inside_outside(
        scores.detach().to(dtype).contiguous().numpy(), lengths.numpy(), partition.numpy(), marginals.numpy()
    )
    return partition, marginals


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
                if size == 1 or mass < 1e-12:  # less mass changes no float32 gradient
                    continue
                splits_total = by_start[start, end] - scores[row, start, end]
                for middle in range(start + 1, end):
                    part = mass * np.exp(by_start[start, middle] + by_end[end, middle] - splits_total)
                    mass_by_start[start, middle] += part
                    mass_by_end[end, middle] += part
