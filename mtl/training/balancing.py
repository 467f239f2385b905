"""Build the configured balancer, and compute the gradients that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from mtl.config.schema import BalancerConfig
from mtl.errors import InputError
from mtl.models.encoder import Encoder
from mtl.models.seq2seq import Seq2Seq
from mtl.training.balancers import Balancer, Fixed, GradNorm, MovingAverage, PCGrad, Uncertainty, Uniform
from mtl.training.check import check_balancer
from tasks.twins import task_of


def balancer_for(config: BalancerConfig, tasks: Sequence[str], mode: str) -> Balancer:
    """Build the balancer; raises `InputError` if it does not fit the tasks or `batch.mode`, here `mode`."""
    check_balancer(config, tuple(tasks), mode)
    number = len(tasks)
    balancers = {
        "uniform": lambda: Uniform(),
        "fixed": lambda: Fixed(
            [config.weights.get(name, config.weights.get(task_of(name), 1.0)) for name in tasks]
        ),
        "moving_average": lambda: MovingAverage(number, config.window),
        "uncertainty": lambda: Uncertainty(number),
        "gradnorm": lambda: GradNorm(number, config.alpha, config.lr),
        "pcgrad": lambda: PCGrad(),
    }
    try:
        return balancers[config.name]()
    except ValueError as error:
        raise InputError(f"balancer {config.name}: {error}") from error


def shared_parameters(encoder: Encoder | Seq2Seq, balancer: Balancer) -> list[nn.Parameter]:
    """The trained parameters whose gradients per task the balancer needs."""
    if balancer.gradients == "none":
        return []
    module: nn.Module = encoder if balancer.gradients == "encoder" else encoder.last_layer()
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def gram_matrix(
    losses: Mapping[str, Tensor], tasks: Sequence[str], parameters: Sequence[nn.Parameter]
) -> Float[Tensor, "task task"]:
    """Inner products of the tasks' gradients, each first summed over ranks; 0 for tasks without a loss."""
    size = sum(parameter.numel() for parameter in parameters)
    rows = []
    for name in tasks:
        if name not in losses:
            rows.append(parameters[0].new_zeros(size, dtype=torch.float32))
            continue
        gradients = torch.autograd.grad(losses[name], parameters, retain_graph=True, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(parameter) if gradient is None else gradient).flatten().float()
                    for parameter, gradient in zip(parameters, gradients, strict=True)
                ]
            )
        )
    stacked = torch.stack(rows)
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(stacked)
    return stacked @ stacked.T
