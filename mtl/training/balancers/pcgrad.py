"""Weights that project conflicting gradients."""

from __future__ import annotations

import torch

from mtl.training.balancers.balancer import Balancer, Gram, PerTask, Present


class PCGrad(Balancer):
    """Projects each task's gradient where it conflicts with another's, and adds up (Yu et al. 2020, alg. 1).

    The gradient of each task i meets the other tasks j in random order: if it has a negative dot product with
    the *original* g_j, it is projected onto the plane normal to g_j. It stays a linear combination of the
    original gradients, and its dot products follow from the Gram matrix alone. So the result is one weight
    per task, and no projected gradient is ever stored. The order is drawn from torch's global generator on
    the Gram matrix's device.
    """

    gradients = "encoder"

    @torch.no_grad()
    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        if gram is None:
            raise ValueError("PCGrad needs the Gram matrix of the tasks' gradients over the encoder")
        tasks = len(losses)
        gram = torch.where(present[:, None] & present[None, :], gram, 0)
        squares = gram.diagonal()
        rows = torch.arange(tasks, device=gram.device)
        orders = torch.rand(tasks, tasks, device=gram.device).argsort(1)
        # Row i: the coefficients of task i's projected gradient; all rows take their steps at once.
        coefficients = torch.diag(present.to(gram.dtype))
        for others in orders.unbind(1):
            dots = (coefficients * gram[others]).sum(1)
            conflicts = (dots < 0) & (others != rows) & (squares[others] > 0)
            shares = torch.where(conflicts, dots / squares[others], 0)
            coefficients[rows, others] -= shares
        return coefficients.sum(0).to(losses.dtype)
