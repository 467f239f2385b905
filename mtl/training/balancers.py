"""Balancers: from an update's losses, and the agreement of the tasks' gradients, to weights of the tasks.

`LossScale` is a further factor of the loss, where gradients are computed in float16.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mtl.config.schema import BalancerConfig
from mtl.errors import as_input_error
from mtl.models.tapped import TappedModel

PerTask = Float[Tensor, " task"]
Present = Bool[Tensor, " task"]
Gram = Float[Tensor, "task task"]


class Balancer(nn.Module, ABC):
    """Gives the weights of the tasks in an update; all state is in buffers and parameters, for checkpoints.

    Tasks without annotation in an update are not `present`: their entries of `losses` and `gram`, which may
    be NaN, are ignored, their weight is 0, and the balancer's state for them does not change. Before adding
    up, replace their losses by 0, since 0 times NaN is NaN. All ranks must pass the same losses, Gram matrix
    and `present`, those of the whole update (all ranks, all accumulated batches), with random generators in
    the same state; otherwise their weights drift apart.
    """

    by_losses: ClassVar[bool] = True
    """Whether weights depend on the losses or their gradients, and so are unknown before the last batch of an
    update. If not, `forward` changes no state and ignores `losses` and `gram`."""

    gradients: ClassVar[Literal["none", "last_layer", "encoder"]]
    """The shared parameters for which `gram` is needed: G_ij = g_i . g_j, with g_i the gradient of task i."""

    @abstractmethod
    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        """The weights of this update; changes the balancer's state, so call it once per update."""

    def regulariser(self, present: Present) -> Float[Tensor, ""]:
        """The term added to the weighted losses to train the balancer's own parameters, in their unit."""
        return torch.zeros((), device=present.device)


class Fixed(Balancer):
    """The user's weights, in the order of the tasks; raises `ValueError` if one is negative or not finite."""

    gradients = "none"
    by_losses = False
    weights: Tensor

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
        if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
            raise ValueError(f"task weights {list(weights)}: use finite numbers, none below 0")
        # Not in checkpoints: they must not bring back weights that the user has since changed.
        self.register_buffer("weights", torch.tensor(list(weights), dtype=torch.float32), persistent=False)

    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        return torch.where(present, self.weights, 0).to(losses.dtype)


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


_SMALLEST_AVERAGE = 1e-8
"""Lower bound of an average loss, which is the divisor of a weight."""


class MovingAverage(Balancer):
    """Weight of task k: the sum of all tasks' recent average losses over that of k (He & Choi 2021).

    Averages are over the last `window` updates, this one included, in which the task was present. A task that
    was never present adds nothing to the sum. With `intrinsic`, the weight is multiplied by the loss of this
    update over the average (`intrinsic_weighting` of their code).
    """

    gradients = "none"
    history: Tensor
    count: Tensor

    def __init__(self, tasks: int, window: int = 5, intrinsic: bool = False) -> None:
        super().__init__()
        self.intrinsic = intrinsic
        if window < 1:
            raise ValueError(f"window {window}: the moving average needs at least 1 update")
        self.register_buffer("history", torch.zeros(tasks, window))
        self.register_buffer("count", torch.zeros(tasks, dtype=torch.long))

    @torch.no_grad()
    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        window = self.history.shape[1]
        slots = torch.arange(window, device=self.history.device)
        written = present[:, None] & (slots == (self.count % window)[:, None])
        self.history.copy_(torch.where(written, losses[:, None].float(), self.history))
        self.count.add_(present)
        averages = self.history.sum(1) / self.count.clamp(1, window)
        divisors = averages.clamp(min=_SMALLEST_AVERAGE)
        weights = averages.sum() / divisors
        if self.intrinsic:
            weights = weights * losses.float() / divisors
        return torch.where(present, weights, 0).to(losses.dtype)


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


Weighting = Literal["AlignedMTL", "CAGrad", "DualProj", "FairGrad", "IMTLG", "MGDA", "NashMTL", "UPGrad"]
_SETTINGS: Mapping[Weighting, Mapping[str, float]] = {"CAGrad": {"c": 0.5}, "FairGrad": {"alpha": 1.0}}
"""Settings for which the library has no defaults: LibMTL's defaults."""


class TorchJD(Balancer):
    """A weighting of TorchJD (Quinton and Rey 2024) by its name, from the Gram matrix of the encoder.

    The present tasks get the library's weights in its scale: most weightings sum to about 1, while `Uniform`
    gives 1 to each task. The gradients of the decoders get the same weights. A task that is alone in its run
    has weight 1. Nash-MTL starts each update from the weights of the last one, which are the only state.
    Raises `ImportError` if what the weighting needs is not installed.
    """

    gradients = "encoder"
    last: Tensor

    def __init__(self, tasks: int, weighting: Weighting = "UPGrad") -> None:
        super().__init__()
        self.name = weighting
        self.register_buffer("last", torch.ones(tasks, dtype=torch.float64))
        self._of: dict[int, Callable[[Tensor], Tensor]] = {}
        self._weights_of(tasks)  # raises for what is not installed before anything is trained

    @torch.no_grad()
    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        if gram is None:
            raise ValueError("TorchJD needs the Gram matrix of the tasks' gradients over the encoder")
        weights = torch.zeros_like(losses)
        among = gram[present][:, present]
        if not among.isfinite().all():
            return torch.where(present, torch.nan, weights)
        if len(present) == 1 or not among.any():  # nothing to weigh, or no gradient
            return present.to(losses.dtype)
        found = self._nash(among, present) if self.name == "NashMTL" else self._weights_of(len(among))(among)
        weights[present] = found.to(weights.dtype)
        return weights

    def _weights_of(self, tasks: int) -> Any:
        """The library's weighting for a number of tasks."""
        from torchjd import aggregation

        if tasks not in self._of:
            if self.name == "NashMTL":
                self._of[tasks] = aggregation.NashMTL(n_tasks=tasks).weighting
            else:
                self._of[tasks] = getattr(aggregation, f"{self.name}Weighting")(
                    **_SETTINGS.get(self.name, {})
                )
        return self._of[tasks]

    def _nash(
        self, gram: Float[Tensor, "present present"], present: Bool[Tensor, " task"]
    ) -> Float[Tensor, " present"]:
        """Nash-MTL's weights; the library takes gradients, but any with these inner products will do."""
        values, vectors = torch.linalg.eigh(gram)
        weighting = self._weights_of(len(gram))
        weighting.prvs_alpha = self.last[present].cpu().numpy()
        with warnings.catch_warnings():
            # cvxpy compiles the problem anew in each update; the user can do nothing about it.
            warnings.filterwarnings("ignore", message=".*not DPP")
            weights: Tensor = weighting(vectors * values.clamp(min=0).sqrt())
        self.last[present] = torch.from_numpy(np.asarray(weighting.prvs_alpha)).to(self.last)
        return weights


class Uncertainty(Balancer):
    """Each task's loss becomes L / (2 e^s) + s / 2, s = log sigma^2 learned (Kendall et al. 2018).

    At the optimum e^s is the task's mean loss. The weights carry the gradient of s.
    """

    gradients = "none"
    by_losses = False

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(tasks))

    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        return torch.where(present, 0.5 * torch.exp(-self.log_variance), 0).to(losses.dtype)

    def regulariser(self, present: Present) -> Float[Tensor, ""]:
        # Only for present tasks: without a loss, s / 2 alone would push s down.
        return torch.where(present, 0.5 * self.log_variance, 0).sum()


class Uniform(Balancer):
    """Weight 1 for every task: the plain sum of the losses."""

    gradients = "none"
    by_losses = False

    def forward(self, losses: PerTask, gram: Gram | None, present: Present) -> PerTask:
        return present.to(losses.dtype)


def balancer_for(config: BalancerConfig, tasks: Sequence[str]) -> Balancer:
    """The configured balancer; `check_settings` has checked that it fits the run."""
    number = len(tasks)
    balancers = {
        "uniform": lambda: Uniform(),
        "fixed": lambda: Fixed([config.weights.get(name, 1.0) for name in tasks]),
        "moving_average": lambda: MovingAverage(number, config.window, config.intrinsic),
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


class LossScale(nn.Module):
    """A factor of the loss that keeps small gradients in the range of float16.

    Gradients are divided by it before anything reads them (Micikevicius et al. 2018, section 3.2). It follows
    the rule of `torch.amp.GradScaler`: an update whose gradients overflow is not made, and the factor is
    halved; after `interval` updates in a row that were made, it is doubled. It does not go below 1, where an
    overflow is not of its making. The state is in buffers, as it is needed to resume.

    Args:
        factor: the first factor.
        interval: updates until it is doubled.
    """

    factor: Tensor
    made: Tensor

    def __init__(self, factor: float = 2.0**16, interval: int = 2000) -> None:
        super().__init__()
        self.interval = interval
        self.register_buffer("factor", torch.tensor(factor))
        self.register_buffer("made", torch.tensor(0))

    def forward(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The loss times the factor."""
        return loss * self.factor

    def without_overflows(self, norms: Float[Tensor, " norm"]) -> Float[Tensor, " norm"]:
        """Norms of gradients, with 0 for those that may have overflowed because of the factor."""
        return torch.where(norms.isfinite() | (self.factor <= 1), norms, 0.0)

    def follow(self, overflow: Tensor) -> None:
        """Set the factor for the next update; `overflow` is not 0 if this one is not made."""
        grows = self.made + 1 == self.interval
        higher = torch.where(grows, 2 * self.factor, self.factor)
        self.factor.copy_(torch.where(overflow != 0, (self.factor / 2).clamp(min=1.0), higher))
        self.made.copy_(torch.where((overflow != 0) | grows, 0, self.made + 1))
