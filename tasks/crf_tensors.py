"""The recursions of `BioCrf` on devices other than the CPU, in few operations that the host has to start.

Sums over predecessors are products of matrices in float64, and each word's are divided by their total. The
forward and the backward recursion run side by side, and the gradient follows from both without a graph: three
operations a word in all.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

_AGREE = 1e-9
"""By how much, relatively, log Z may differ between the two recursions."""


class LogPartition(torch.autograd.Function):
    """log Z of every row, of a chain given tag by tag: `start` [tag], `steps` [tag tag] and `end` [tag].

    Lengths are at least 1. If scores of one word lie about 700 nats apart, float64 may not be able to
    represent the weight of a path relative to others. The two recursions then disagree, and log Z is NaN.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Float[Tensor, "row word tag"],
        lengths: Int[Tensor, " row"],
        start: Float[Tensor, " tag"],
        steps: Float[Tensor, "tag tag"],
        end: Float[Tensor, " tag"],
    ) -> Float[Tensor, " row"]:
        first, weights, last = (potential.double().exp() for potential in (start, steps, end))
        words = torch.arange(scores.shape[1], device=scores.device)
        within = words < lengths[:, None]
        rows = torch.arange(len(scores), device=scores.device)[:, None]
        mirrored = (lengths[:, None] - 1 - words).clamp(min=0)
        tops = scores.amax(2).double()
        factors = (scores - tops[:, :, None]).masked_fill(~within[:, :, None], 0.0).exp()
        sums, masses = _both_ways(
            torch.stack((factors, factors[rows, mirrored])), torch.stack((first, last)), weights
        )
        forth, back = masses[:, 0].transpose(0, 1), masses[mirrored, 1, rows]
        ahead = sums[mirrored, 1, rows, :-1]
        joint = forth * ahead
        totals = joint.sum(2, keepdim=True)
        marginals = (joint / totals).masked_fill(~within[:, :, None], 0.0)

        scales = sums[:, :, :, -1].log().permute(1, 2, 0) + torch.stack((tops, tops[rows, mirrored]))
        scale = scales.masked_fill(~within, 0.0).sum(2)
        final = masses[lengths - 1, :, rows[:, 0]].transpose(0, 1)  # [direction row tag]
        partition, other = scale + (final * torch.stack((last, first))[:, None]).sum(2).log()
        agree = (partition - other).abs() <= _AGREE * (1 + partition.abs())
        ctx.save_for_backward(marginals, forth / totals, back, weights, within, lengths)
        return partition.where(agree, torch.nan).to(scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Float[Tensor, " row"]) -> tuple[Tensor | None, ...]:
        marginals, left, right, weights, within, lengths = ctx.saved_tensors
        counts = marginals * outer[:, None, None]
        pairs = (left * outer[:, None, None])[:, :-1].masked_fill(~within[:, 1:, None], 0.0)
        of_steps = weights * (pairs.flatten(0, 1).mT @ right[:, 1:].flatten(0, 1))
        final = counts.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, counts.shape[2]))
        of_scores, *of_chain = (
            part.to(outer.dtype) for part in (counts, counts[:, 0].sum(0), of_steps, final.sum((0, 1)))
        )
        return of_scores, None, *of_chain


def _both_ways(
    factors: Float[Tensor, "2 row word tag"], first: Float[Tensor, "2 tag"], weights: Float[Tensor, "tag tag"]
) -> tuple[Float[Tensor, "word 2 row more"], Float[Tensor, "word 2 row tag"]]:
    """Both recursions: each word's sums over neighbours with their total behind them, and its masses.

    The masses are the sums over their total, times the word's factors. The second recursion reads the words
    from the last to the first.
    """
    _, rows, words, tags = factors.shape
    steps = torch.stack((weights, weights.T))
    steps = torch.cat((steps, steps.sum(2, keepdim=True)), 2)
    sums = factors.new_empty(words, 2, rows, tags + 1)
    masses = factors.new_empty(words, 2, rows, tags)
    sums[0] = torch.cat((first, first.sum(1, keepdim=True)), 1)[:, None]
    of_tags, totals = sums[..., :-1].unbind(0), sums[..., -1:].unbind(0)
    of_words, made = factors.unbind(2), masses.unbind(0)
    for word, whole in enumerate(sums.unbind(0)):
        if word:
            torch.bmm(made[word - 1], steps, out=whole)
        torch.mul(of_tags[word], of_words[word], out=made[word]).div_(totals[word])
    return sums, masses
