"""A training step: the weighted sum of the tasks' losses, the gates, the optimizer, and what watches it.

The loss of each task comes from `JointModel.losses`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from mtl.errors import RunError
from mtl.models.batches import Batch
from mtl.models.joint import JointModel
from mtl.models.opened import narrow_parts
from mtl.models.pass_graphs import PassGraphs
from mtl.models.passes import not_finite, rounded_weights
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted
from mtl.tasks.recursions import RecursionGraphs
from mtl.training.balancers import (
    Balancer,
    KeptGradients,
    LossScale,
    as_in_backward,
    gram_matrix,
    shared_parameters,
)
from mtl.training.gate_loss import GateLoss
from mtl.training.on_cpu import EmbeddingRows, draw_by_counter, sole_embedding
from mtl.training.ranks import alike_on_all_ranks

Schedule = Literal["linear", "cosine", "constant", "inverse_sqrt"]


class JointTraining(pl.LightningModule):
    """Trains a joint model: losses per task, weighted by the balancer, plus what the gates cost.

    An update's loss of a task is the sum over the accumulated batches of *all* ranks, divided by the
    annotated words, sentences or pieces (`Task.loss_unit`) in them. So two ranks with half a batch each, or
    two halves one after the other, make the same update as one rank with the whole batch. The balancer and
    the gates' costs see the losses of the whole update. What belongs to an update and not to a sentence (the
    gates' samples, PCGrad's order) is drawn from `seed` and the update's number, alike on all ranks.

    An update with a loss, gradient or gate that is not finite is not made, and ends the run (`Watch`).

    Args:
        model: Encoder and decoders.
        balancer: Weighs the tasks' losses.
        updates: Updates that the run will make; rates and gates follow a schedule over them.
        encoder_lr: Peak learning rate of the encoder.
        decoder_lr: Peak learning rate of the decoders, or one for each task.
        weight_decay: AdamW's decay, on matrices only.
        warmup: Share of the updates in which the rates rise linearly.
        schedule: How the rates change after the warm-up (`rate_factor`).
        beta2: Adam's decay of squared gradients.
        clip: Largest norm of the gradient of encoder and decoders; 0: no clipping.
        gate_loss: What the gates cost; its gates are trained. `None`: no gates are trained.
        gate_lr: Learning rate of log alpha, or one for each mask.
        gate_warmup: Share of the updates in which that rate rises linearly.
        balancer_lr: Learning rate of the balancer's own weights.
        meters: Watch the forward passes and losses.
        rounded: Compute forward and backward passes with copies of the weights in bfloat16
            (`rounded_weights`); the update is that of the weights, in float32.
        loss_scale: Scales losses, since gradients are computed in float16; `None`: they are not.
        graphs: CUDA graphs of the decoders' recursions, and of passes through the encoder and, in batches of
            rounded shapes, decoders and losses; without them these are computed operation by operation.
        seed: Seed of what all ranks draw alike.
    """

    loss_sum: Tensor
    loss_count: Tensor

    def __init__(
        self,
        model: JointModel,
        balancer: Balancer,
        *,
        updates: int,
        encoder_lr: float = 5e-5,
        decoder_lr: float | Mapping[str, float] = 1e-3,
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        schedule: Schedule = "linear",
        beta2: float = 0.999,
        clip: float = 1.0,
        gate_loss: GateLoss | None = None,
        gate_lr: float | Sequence[float] = 0.0,
        gate_warmup: float = 0.0,
        balancer_lr: float = 0.0,
        meters: Sequence[StepMeter] = (),
        rounded: bool = False,
        loss_scale: LossScale | None = None,
        graphs: Sequence[RecursionGraphs | PassGraphs] = (),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.loss_scale = loss_scale
        self.model, self.balancer, self.gate_loss, self.meters = model, balancer, gate_loss, tuple(meters)
        self.updates, self.warmup, self.schedule, self.clip = updates, warmup, schedule, clip
        self.beta2, self.rounded, self.graphs, self.seed = beta2, rounded, tuple(graphs), seed
        self.encoder_lr, self.decoder_lr, self.weight_decay = encoder_lr, decoder_lr, weight_decay
        self.gate_lr, self.gate_warmup, self.balancer_lr = gate_lr, gate_warmup, balancer_lr
        draw_by_counter(model)
        self.names = tuple(model.tasks)
        self.shared = shared_parameters(model.encoder, balancer)
        # Ranks do not exchange buffers, so buffers hold only what is equal on all ranks. A rank's part of an
        # unfinished update is not a buffer; checkpoints are written between updates.
        self.register_buffer("loss_sum", torch.zeros(len(self.names)))
        self.register_buffer("loss_count", torch.zeros(len(self.names)))
        for meter in self.meters:
            self.add_module(meter.name, meter)
        self.task_weights: Tensor
        self.register_buffer("task_weights", torch.full((len(self.names),), math.nan), persistent=False)
        """The balancer's weight of each task in the last update that had the task."""
        self.gradient_norm = torch.zeros(())
        """The norm of the last update's gradient of encoder and decoders, before clipping."""
        self.learning_rates: dict[str, float] = {}
        """The rates of the last update, by part of the model."""
        self._losses = torch.zeros(len(self.names))
        self._kept: KeptGradients | None = None
        self._rows: EmbeddingRows | None = None
        self._log_alpha_before: Tensor | None = None
        self._watch = Watch()

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """The loss of a batch, ready for `backward`; `batch_index` counts within the epoch."""
        loss = self._part_of_update(batch, batch_index)
        return loss if self.loss_scale is None else self.loss_scale(loss)

    def _part_of_update(self, batch: Batch, batch_index: int) -> Tensor:
        """The loss of a batch; `batch_index` counts within the epoch.

        It is the batch's part of the update's loss. But if the balancer must see the losses of all batches
        first, the gradients are kept until the last batch of the update, whose loss then has all of them.
        """
        accumulated = self.trainer.accumulate_grad_batches
        update, place = divmod(batch_index, accumulated)
        last = place + 1 == accumulated or batch_index + 1 == self.trainer.num_training_batches
        waits = self.balancer.by_losses and accumulated > 1
        losses = self._batch_losses(batch, update, last)
        rank_losses = self._stacked(losses)
        if place == 0:
            trained = (parameter for parameter in self.model.parameters() if parameter.requires_grad)
            self._kept = KeptGradients(trained) if waits else None
        self._losses = rank_losses.detach() if place == 0 else self._losses + rank_losses.detach()
        if self._kept is not None:
            self._kept.add(losses)
            if not last:
                return torch.zeros((), device=self.device, requires_grad=True)
        present = torch.tensor([batch.loss_units.get(name, 0) > 0 for name in self.names]).to(
            rank_losses.device, non_blocking=True
        )
        # DDP averages gradients over ranks, and Lightning divides by the number of accumulated batches, while
        # an update's loss is the sum of all parts: hence the factors. The balancer's own parameters and the
        # gates' costs see the losses of the whole update, once.
        ranks = self.trainer.world_size
        if not last:
            weights = self._weights(self._losses, None, present).detach()
            return (weights * rank_losses).sum() * ranks * accumulated
        if dist.is_available() and dist.is_initialized():
            self._losses = self._losses.clone()
            dist.all_reduce(self._losses)
        update_losses = self._losses
        weights = self._weights(update_losses, self._gram(losses), present)
        self.task_weights = torch.where(present, weights.detach(), self.task_weights)
        self.loss_sum += update_losses
        self.loss_count += present
        if self._kept is None:
            total = weights.detach() @ rank_losses
        else:
            total = self._kept.weighted(dict(zip(self.names, weights.detach(), strict=True)))
            self._kept = None
        if ranks > 1:
            total = total * ranks
        if weights.requires_grad:
            total = total + (weights * update_losses).sum() + self.balancer.regulariser(present)
        if self.gate_loss is not None:
            total = total + self.gate_loss(self.global_step, weights.detach() * update_losses)
        return total * accumulated if accumulated > 1 else total

    def _batch_losses(self, batch: Batch, update: int, last: bool) -> dict[str, Tensor]:
        """The losses of this rank's batch; `update` counts within the epoch, `last`: its last batch."""
        scale = None
        if self.model.gates is not None:
            with alike_on_all_ranks(self.device, self.seed, self.global_step, 0):
                scale = self.model.scales.in_pass()
        with ExitStack() as watching:
            if self.rounded:
                watching.enter_context(rounded_weights(narrow_parts(self.model), self.shared))
            for graphs in self.graphs:
                watching.enter_context(graphs.in_use())
            seen = [watching.enter_context(meter.watching(update)) for meter in self.meters]
            if batch.padded:
                losses = self.model.losses_by_graphs(batch, scale)
            else:
                losses = self.model.losses(batch, self.model(batch, scale))
        for meter, of_meter in zip(self.meters, seen, strict=True):
            meter.add(of_meter, losses, last)
        return losses

    def _gram(self, losses: dict[str, Tensor]) -> Float[Tensor, "task task"] | None:
        if not self.shared:
            return None
        if self._kept is None:
            return gram_matrix(losses, self.names, self.shared)
        return self._kept.gram(self.names, self.shared)

    def _weights(
        self, losses: Float[Tensor, " task"], gram: Float[Tensor, "task task"] | None, present: Tensor
    ) -> Float[Tensor, " task"]:
        with (
            as_in_backward(self.device),
            alike_on_all_ranks(self.device, self.seed, self.global_step, 1),
        ):
            weights: Float[Tensor, " task"] = self.balancer(losses, gram, present)
        return weights

    def _stacked(self, losses: dict[str, Tensor]) -> Float[Tensor, " task"]:
        """The losses of all tasks, in float32; 0 for tasks without a loss."""
        if len(losses) < len(self.names):
            losses = {**dict.fromkeys(self.names, torch.zeros((), device=self.device)), **losses}
        return torch.stack([losses[name].float() for name in self.names])

    def on_train_epoch_start(self) -> None:
        """Start the epoch's mean losses from zero."""
        self.loss_sum.zero_()
        self.loss_count.zero_()

    def mean_losses(self) -> dict[str, float]:
        """Each task's loss per `Task.loss_unit`, averaged over the epoch's updates that have the task."""
        means = (self.loss_sum / self.loss_count.clamp(min=1)).tolist()
        return dict(zip(self.names, means, strict=True))

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip encoder and decoders by their common norm; gates and balancer are not clipped.

        The fused AdamW divides all gradients by `grad_scale` as it reads them, so those of encoder and
        decoders are read once less. The others are multiplied beforehand. The scale of the losses, which all
        have, is a part of `grad_scale`.
        """
        graded = [
            (self._parameter_names[parameter], gradient, group["clip"])
            for group in optimizer.param_groups
            for parameter in group["params"]
            if (gradient := self._gradient_of(parameter)) is not None
        ]
        norms = torch.stack([norm.float() for norm in torch._foreach_norm([grad for _, grad, _ in graded])])
        if self.loss_scale is not None:
            norms = norms / self.loss_scale.factor
        clipped = sum(clip for _, _, clip in graded)  # they come first (`_groups`)
        norm = torch.linalg.vector_norm(norms[:clipped])
        self.gradient_norm = norm
        self.learning_rates = {group["name_of_rate"]: group["lr"] for group in optimizer.param_groups}
        divisor = ((norm + 1e-6) / self.clip).clamp(min=1.0) if self.clip else torch.ones_like(norm)
        if self.clip:
            for _, gradient, clip in graded:
                if not clip:
                    gradient.mul_(divisor)
        gates = [] if self.gate_loss is None else [self.gate_loss.gates.log_alpha.detach().abs().amax()[None]]
        values = torch.cat([self._losses.to(norms.device), norms, norm[None], *gates])
        # AdamW's `step` reads both attributes, which torch does not declare. It does nothing if `found_inf`.
        found_inf = (values * 0).sum().isnan().to(divisor.dtype)
        if self.loss_scale is not None:
            divisor = divisor * self.loss_scale.factor
            of_gradients = self.loss_scale.without_overflows(torch.cat([norms, norm[None]]))
            values[len(self._losses) :][: len(of_gradients)] = of_gradients
            self.loss_scale.follow(found_inf)
        vars(optimizer).update(grad_scale=divisor, found_inf=found_inf)
        self._watch.note(
            f"update {self.global_step + 1:,} (epoch {self.current_epoch + 1})",
            [
                *(f"the loss of {name}" for name in self.names),
                *(f"the gradient of {name}" for name, _, _ in graded),
                "the norm of the gradient of encoder and decoders",
                *("the largest log alpha of the gates" for _ in gates),
            ],
            values,
        )

    @cached_property
    def _parameter_names(self) -> dict[nn.Parameter, str]:
        return {parameter: name for name, parameter in self.named_parameters()}

    def _gradient_of(self, parameter: nn.Parameter) -> Tensor | None:
        """The gradient of a parameter; of its rows if it is an embedding of `EmbeddingRows`."""
        if self._rows is not None and parameter is self._rows.weight:
            return self._rows.take_gradient()
        return parameter.grad

    def require_finite(self, parameters: bool = False) -> None:
        """Raise `RunError` if an update was not finite; with `parameters`, also if a parameter is not."""
        self._watch.look()
        if parameters and (wrong := not_finite(self.named_parameters())):
            raise RunError(
                f"update {self.global_step:,} (epoch {self.current_epoch + 1}): {wrong[0]} has values that "
                f"are not finite, as have {counted(len(wrong) - 1, 'other parameter')}"
            )

    def configure_optimizers(self) -> Any:
        """One AdamW with groups by learning rate and weight decay, and the schedule of the rates.

        The rates of encoder and decoders follow the schedule. That of the gates is constant after its
        warm-up, and that of the balancer is constant.
        """
        groups = list(self._groups())
        optimizer = torch.optim.AdamW(groups, betas=(0.9, self.beta2), fused=True)
        # The gates are held to their target as a part of the update: at the end of a batch, Lightning calls
        # the callbacks, one of which writes checkpoints, before the module's own hook.
        if self.gate_loss is not None and not isinstance(self.gate_lr, int | float):
            optimizer.register_step_pre_hook(self._keep_log_alpha)
        optimizer.register_step_post_hook(self._hold_gates)

        def factor_of(warmup: float, schedule: Schedule) -> Callable[[int], float]:
            return lambda update: rate_factor(update, self.updates, warmup, schedule)

        rates = {
            "model": factor_of(self.warmup, self.schedule),
            "gates": factor_of(self.gate_warmup, "constant"),
            "balancer": lambda update: 1.0,
        }
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [rates[group["part"]] for group in groups])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _sparse_embedding(self) -> nn.Embedding | None:
        """The word embedding, if its gradients may be sparse: on one CPU, and if nothing else reads it."""
        looked_at = self.shared or self.balancer.by_losses or self.rounded
        if looked_at or self.trainer.world_size > 1 or self.trainer.strategy.root_device.type != "cpu":
            return None
        return sole_embedding(self.model, self.model.encoder.transformer.get_input_embeddings())

    def on_train_start(self) -> None:
        """Have the rows of the word embedding updated as they are read, where that is possible."""
        embedding = self._sparse_embedding()
        if embedding is not None:
            self._rows = EmbeddingRows(embedding, self.trainer.optimizers[0])

    def on_train_epoch_end(self) -> None:
        """Make the pending updates of the word embedding."""
        if self._rows is not None:
            self._rows.catch_up()

    def on_train_end(self) -> None:
        """Make the word embedding an ordinary one again."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def _keep_log_alpha(self, *_: Any) -> None:
        assert self.gate_loss is not None
        self._log_alpha_before = self.gate_loss.gates.log_alpha.detach().clone()

    def _hold_gates(self, *_: Any) -> None:
        if self.gate_loss is not None:
            if self._log_alpha_before is not None:
                # Adam's steps are proportional to the rate, which a group has one of: here the largest.
                log_alpha, before = self.gate_loss.gates.log_alpha.detach(), self._log_alpha_before
                rates = torch.tensor(self.gate_lr, device=log_alpha.device)
                log_alpha.copy_(before + (log_alpha - before) * (rates / rates.max())[:, None, None])
                self._log_alpha_before = None
            self.gate_loss.after_update(self.global_step + 1)  # Lightning counts the update later

    def _groups(self) -> Iterator[dict[str, Any]]:
        """Groups of parameters for AdamW; those with `clip` are clipped, and their rates follow the schedule.

        They come first.
        """
        for name, modules, rate in self._modules_and_rates():
            parameters = (parameter for module in modules for parameter in module.parameters())
            trained = [parameter for parameter in parameters if parameter.requires_grad]
            for matrices in (True, False):
                chosen = [parameter for parameter in trained if (parameter.ndim > 1) == matrices]
                if chosen:
                    decay = self.weight_decay if matrices else 0.0
                    yield {
                        "params": chosen, "lr": rate, "weight_decay": decay, "clip": True, "part": "model",
                        "name_of_rate": name,
                    }  # fmt: skip
        if self.gate_loss is not None:
            yield {
                "params": list(self.gate_loss.gates.parameters()),
                "lr": self.gate_lr if isinstance(self.gate_lr, int | float) else max(self.gate_lr),
                "weight_decay": 0.0, "clip": False, "part": "gates", "name_of_rate": "gates",
            }  # fmt: skip
        learned = list(self.balancer.parameters())
        if learned:
            yield {
                "params": learned, "lr": self.balancer_lr,
                "weight_decay": 0.0, "clip": False, "part": "balancer", "name_of_rate": "balancer",
            }  # fmt: skip

    def _modules_and_rates(self) -> Iterator[tuple[str, Sequence[nn.Module], float]]:
        """The encoder and the decoders by name with their learning rates, one after another."""
        yield "encoder", [self.model.encoder], self.encoder_lr
        if not isinstance(self.decoder_lr, Mapping):
            yield "decoders", [self.model.decoders], self.decoder_lr
            return
        for rate in dict.fromkeys(self.decoder_lr.values()):
            tasks = [name for name in self.names if self.decoder_lr[name] == rate]
            yield "+".join(tasks), [self.model.decoder(name) for name in tasks], rate


def rate_factor(update: int, updates: int, warmup: float, schedule: Schedule) -> float:
    """The learning rate of an update as a share of its peak: linear warm-up, then the schedule.

    `inverse_sqrt` is proportional to 1 / sqrt(update), as in Vaswani et al. (2017).
    """
    rising = warmup * updates
    if update < rising:
        return (update + 1) / (rising + 1)
    if schedule == "inverse_sqrt":
        return math.sqrt(max(rising, 1.0) / max(update, 1.0))
    progress = min(1.0, (update - rising) / max(1.0, updates - rising))
    curves: dict[str, Callable[[float], float]] = {
        "linear": lambda x: 1.0 - x,
        "cosine": lambda x: 0.5 * (1.0 + math.cos(math.pi * x)),
        "constant": lambda x: 1.0,
    }
    return curves[schedule](progress)


class StepMeter(nn.Module, ABC):
    """Watches the forward passes and losses of a training step; its buffers are part of a checkpoint.

    Ranks do not exchange buffers, so a meter must keep its buffers equal on all of them.
    """

    name: ClassVar[str]
    """The first part of its buffers' names in a checkpoint."""

    @abstractmethod
    def watching(self, update: int) -> AbstractContextManager[Any]:
        """Watch a forward pass in the block, and yield what is seen; `update` counts within the epoch."""

    @abstractmethod
    def add(self, seen: Any, losses: Mapping[str, Tensor], ends: bool = True) -> None:
        """Take the losses of a pass that was watched, before its backward pass.

        `losses` are this rank's, by task. `ends` says that the pass is the last one of its update.
        """

    @abstractmethod
    def record(self, run: Run) -> pl.Callback:
        """The callback that writes the rows to the run's folder."""


@dataclass(frozen=True, slots=True)
class _Noted:
    """Values that are being copied to the CPU; `arrived` waits for them."""

    where: str
    names: Sequence[str]
    values: Float[Tensor, " name"]
    arrived: Callable[[], object]


def on_its_way(values: Tensor) -> tuple[Tensor, Callable[[], object]]:
    """A copy on the CPU, which has its values once the function has returned; on a CPU the values themselves.

    Until then the program need not wait for the device.
    """
    if values.device.type == "cpu":
        return values, lambda: None
    event = torch.get_device_module(values.device).Event()
    copy = values.detach().to("cpu", non_blocking=True)
    event.record()
    return copy, event.synchronize


class Watch:
    """Ends a run at the first value that is not finite.

    That holds in bfloat16, too, whose range is that of float32. On a CPU, values are checked when they are
    noted. On a GPU, they are checked one update later, so that the program does not wait for the device; the
    device itself skips an update whose values are not finite.
    """

    def __init__(self) -> None:
        self._noted: _Noted | None = None

    def note(self, where: str, names: Sequence[str], values: Float[Tensor, " name"]) -> None:
        """Look at the values noted before, and keep these to look at next; on a CPU look at once.

        Raises `RunError` as `look` does.
        """
        self.look()
        self._noted = _Noted(where, names, *on_its_way(values))
        if values.device.type == "cpu":
            self.look()

    def look(self) -> None:
        """Raise `RunError` if any of the noted values is not finite; the message names the first one."""
        noted, self._noted = self._noted, None
        if noted is None:
            return
        noted.arrived()
        require_finite_values(noted.where, dict(zip(noted.names, noted.values.tolist(), strict=True)))


def require_finite_values(where: str, values: Mapping[str, float]) -> None:
    """Raise `RunError` if any of the values is not finite; the keys name them in the message."""
    wrong = [name for name, value in values.items() if not math.isfinite(value)]
    if wrong:
        more = "" if len(wrong) == 1 else f" (and {len(wrong) - 1} more)"
        raise RunError(f"{where}: {wrong[0]} is {values[wrong[0]]}{more}")
