"""Build the configured balancer, and compute the gradients that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from mtl.config.schema import BalancerConfig
from mtl.errors import as_input_error
from mtl.models.tapped import TappedModel
from mtl.training.balancers import (
    Balancer,
    Fixed,
    GradNorm,
    MovingAverage,
    PCGrad,
    TorchJD,
    Uncertainty,
    Uniform,
)


def balancer_for(config: BalancerConfig, tasks: Sequence[str]) -> Balancer:
    """The configured balancer; `check_settings` has checked that it fits the run."""
    number = len(tasks)
    balancers = {
        "uniform": lambda: Uniform(),
        "fixed": lambda: Fixed([config.weights.get(name, 1.0) for name in tasks]),
        "moving_average": lambda: MovingAverage(number, config.window),
        "uncertainty": lambda: Uncertainty(number),
        "gradnorm": lambda: GradNorm(number, config.alpha, config.lr),
        "pcgrad": lambda: PCGrad(),
        "torchjd": lambda: TorchJD(number, config.weighting),
    }
    with as_input_error(f"balancer {config.name}"):
        return balancers[config.name]()


def shared_parameters(encoder: TappedModel, balancer: Balancer) -> list[nn.Parameter]:
    """The trained parameters whose gradients per task the balancer needs."""
    if balancer.gradients == "none":
        return []
    module: nn.Module = encoder if balancer.gradients == "encoder" else encoder.last_layer()
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def gram_matrix(
    losses: Mapping[str, Tensor], tasks: Sequence[str], parameters: Sequence[nn.Parameter]
) -> Float[Tensor, "task task"]:
    """Inner products of the tasks' gradients, each first summed over ranks; 0 for tasks without a loss."""
    with as_in_backward(parameters[0].device):
        gradients = {
            name: torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            for name, loss in losses.items()
        }
    return gram_of(gradients, tasks, parameters)


def gram_of(
    gradients: Mapping[str, Sequence[Tensor | None]], tasks: Sequence[str], parameters: Sequence[nn.Parameter]
) -> Float[Tensor, "task task"]:
    """Inner products of gradients by task, each first summed over ranks; 0 for tasks without any.

    A task's gradients are in the order of `parameters`; `None` is zero.
    """
    none = (None,) * len(parameters)
    stacked = torch.stack(
        [
            torch.cat(
                [
                    (torch.zeros_like(parameter) if gradient is None else gradient).flatten().float()
                    for parameter, gradient in zip(parameters, gradients.get(name, none), strict=True)
                ]
            )
            for name in tasks
        ]
    )
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(stacked)
    with as_in_backward(stacked.device):
        return stacked @ stacked.T


def as_in_backward(device: torch.device) -> torch.autocast:
    """Switch autocast off during the block, as it is in the backward pass.

    Otherwise gradients and their products would be rounded to bfloat16 in a training step under autocast.
    """
    return torch.autocast(device.type, enabled=False)


class KeptGradients:
    """Per task, the sum of its gradients over the batches of an update.

    A balancer whose weights depend on the losses knows the weights only after the last batch. Until then the
    gradients of each task are kept, since the graphs of all batches would not fit into memory.

    Args:
        parameters: All parameters that the tasks' losses train.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.sums: dict[str, list[Tensor | None]] = {}

    def add(self, losses: Mapping[str, Tensor]) -> None:
        """Add the gradients of a batch's losses, and free its graph."""
        for number, (name, loss) in enumerate(losses.items(), 1):
            more = number < len(losses)
            with as_in_backward(loss.device):
                new = torch.autograd.grad(loss, self.parameters, retain_graph=more, allow_unused=True)
            old = self.sums.get(name, [None] * len(new))
            self.sums[name] = [
                one if other is None else other if one is None else one + other
                for one, other in zip(old, new, strict=True)
            ]

    def gram(self, tasks: Sequence[str], shared: Sequence[nn.Parameter]) -> Float[Tensor, "task task"]:
        """Inner products of the sums in the parameters `shared` (`gram_of`)."""
        places = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        chosen = [places[id(parameter)] for parameter in shared]
        return gram_of({name: [s[place] for place in chosen] for name, s in self.sums.items()}, tasks, shared)

    def weighted(self, weights: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        """A number whose gradient is the sum of all tasks' gradients times their weights."""
        total = self.parameters[0].new_zeros(())
        for place, parameter in enumerate(self.parameters):
            there = [
                weights[name] * gradient
                for name, sums in self.sums.items()
                if (gradient := sums[place]) is not None
            ]
            if there:
                total = total + (parameter * torch.stack(there).sum(0)).sum()
        return total
