"""Weights learned so that the tasks' gradients have matching norms."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mtl.training.balancers.balancer import Balancer, Gram, PerTask, Present

_SMALLEST = 1e-20
"""Lower bound of losses and means that serve as divisors."""


class GradNorm(Balancer):
    """Pulls w_i |g_i| towards mean_j(w_j |g_j|) * r_i^alpha, r_i > 1 for slow learners (Chen et al. 2018).

    r_i = (L_i(t) / L_i(0)) / mean_j(L_j(t) / L_j(0)). In each update, the weights take one step of gradient
    descent on sum_i | w_i |g_i| - target_i | with constant targets, and are scaled to sum to the number of
    tasks. Unlike in the paper, the step is taken in log w, and norms are divided by their mean: so weights
    stay positive, and `rate` does not depend on the scale of the losses. `gram` is that of the gradients in
    the last shared layer. An absent task counts with its last norm and ratio, so that batches that lack tasks
    are balanced, too.
    """

    gradients = "last_layer"
    weights: Tensor
    first_losses: Tensor
    ratios: Tensor
    norms: Tensor
    seen: Tensor

    def __init__(self, tasks: int, alpha: float = 1.5, rate: float = 0.025) -> None:
        super().__init__()
        if not rate > 0:
            raise ValueError(f"rate {rate}: GradNorm's weights need a learning rate above 0")
        self.alpha = alpha
        self.rate = rate
        self.register_buffer("weights", torch.ones(tasks))
        self.register_buffer("first_losses", torch.ones(tasks))
        self.register_buffer("ratios", torch.zeros(tasks))
        self.register_buffer("norms", torch.zeros(tasks))
        self.register_buffer("seen", torch.zeros(tasks, dtype=torch.bool))

    @torch.no_grad()
    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        if gram is None:
            raise ValueError(
                "GradNorm needs the Gram matrix of the tasks' gradients at the last shared layer"
            )
        losses = losses.float().clamp(min=_SMALLEST)
        self.first_losses.copy_(torch.where(present & ~self.seen, losses, self.first_losses))
        self.seen.logical_or_(present)
        self.ratios.copy_(torch.where(present, losses / self.first_losses, self.ratios))
        self.norms.copy_(torch.where(present, gram.diagonal().float().clamp(min=0).sqrt(), self.norms))

        sizes = self.weights * self.norms
        mean_size = _mean(sizes, self.seen).clamp(min=_SMALLEST)
        mean_ratio = _mean(self.ratios, self.seen).clamp(min=_SMALLEST)
        targets = mean_size * (self.ratios / mean_ratio) ** self.alpha
        # d|w n - target| / d log w = sign(w n - target) * w n
        slopes = torch.sign(sizes - targets) * sizes / mean_size
        moved = self.weights * torch.exp(-self.rate * torch.where(present, slopes, 0))
        self.weights.copy_(moved * (len(moved) / moved.sum()))
        return torch.where(present, self.weights, 0).to(losses.dtype)


def _mean(values: Float[Tensor, " task"], where: Bool[Tensor, " task"]) -> Float[Tensor, ""]:
    return torch.where(where, values, 0).sum() / where.sum().clamp(min=1)
