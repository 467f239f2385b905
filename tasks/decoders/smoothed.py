"""Cross-entropy with label smoothing over a large vocabulary, in little memory."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtl.tasks.task import UNKNOWN

_ROWS = 32
"""Positions computed at a time on a CPU, so that their scores stay in its cache."""


def smoothed_cross_entropy(
    scores: Float[Tensor, "batch piece vocabulary"], targets: Int[Tensor, "batch piece"], smoothing: float
) -> Float[Tensor, "batch piece"]:
    """Cross-entropy in nats against targets that give `smoothing` evenly to all pieces, 0 at `UNKNOWN`.

    For scores x, target t and V pieces it is log sum exp x - (1 - smoothing) x_t - smoothing / V sum x
    (Szegedy et al. 2016), in float32 or wider.
    """
    losses: Tensor = _Smoothed.apply(scores.flatten(0, 1), targets.flatten(), smoothing)
    return losses.view(targets.shape)


class _Smoothed(torch.autograd.Function):
    """Computes the gradient, softmax less the smoothed target, along with the loss: scores are read once."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Float[Tensor, "position vocabulary"],
        targets: Int[Tensor, " position"],
        smoothing: float,
    ) -> Float[Tensor, " position"]:
        width = torch.promote_types(scores.dtype, torch.float32)
        losses = torch.zeros(len(scores), dtype=width, device=scores.device)
        gradient = torch.empty_like(scores) if ctx.needs_input_grad[0] else None
        rows = _ROWS if scores.device.type == "cpu" else max(len(scores), 1)
        for start in range(0, len(scores), rows):
            here = slice(start, start + rows)
            part, target = scores[here].to(width, copy=True), targets[here]
            chosen, index = target != UNKNOWN, target.clamp_min(0)[:, None]
            normaliser = part.logsumexp(1)
            loss = normaliser - (1 - smoothing) * part.gather(1, index).squeeze(1)
            if smoothing:
                loss = loss - smoothing * part.mean(1)
            losses[here] = loss * chosen
            if gradient is not None:
                part.sub_(normaliser[:, None]).exp_()
                if smoothing:
                    part.sub_(smoothing / part.shape[1])
                part.scatter_add_(1, index, part.new_full(index.shape, smoothing - 1.0))
                gradient[here] = part.mul_(chosen[:, None])
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        [gradient] = ctx.saved_tensors
        return gradient * upstream[0].to(gradient.dtype)[:, None], None, None
