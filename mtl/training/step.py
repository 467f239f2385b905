"""One training step: losses, balancer, gates, and the optimizer with its rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from mtl.models.batches import Batch
from mtl.models.joint import JointModel
from mtl.training.balancers import Balancer
from mtl.training.balancing import gram_matrix, shared_parameters
from mtl.training.gate_loss import GateLoss
from mtl.training.gradient_conflict import GradientConflict

Schedule = Literal["linear", "cosine", "constant", "inverse_sqrt"]


class JointTraining(pl.LightningModule):
    """Trains a joint model: losses per task, weighted by the balancer, plus what the gates cost.

    The loss of a task is its sum over the batch of *all* ranks, divided by the annotated words, sentences or
    pieces (`Task.unit`) of that batch. Two ranks with half of a batch each thus make the same step as one
    rank with all of it.

    Args:
        model: Encoder and decoders.
        balancer: Weighs the tasks' losses.
        updates: Updates that the run will make; rates and gates follow a schedule over them.
        encoder_lr: Peak learning rate of the encoder.
        decoder_lr: Peak learning rate of the decoders.
        weight_decay: AdamW's decay, on matrices only.
        warmup: Share of the updates in which the rates rise linearly.
        schedule: How the rates change after the warm-up (`rate_factor`).
        beta2: Adam's decay of squared gradients.
        clip: Largest norm of the gradient of encoder and decoders; 0: no clipping.
        gate_loss: What the gates cost; its gates are trained.
        gate_lr: Learning rate of log alpha.
        balancer_lr: Learning rate of the balancer's own weights.
        conflict: Measures the cosines between the tasks' gradients on each head.
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
        decoder_lr: float = 1e-3,
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        schedule: Schedule = "linear",
        beta2: float = 0.999,
        clip: float = 1.0,
        gate_loss: GateLoss | None = None,
        gate_lr: float = 0.0,
        balancer_lr: float = 0.0,
        conflict: GradientConflict | None = None,
    ) -> None:
        super().__init__()
        self.model, self.balancer, self.gate_loss, self.conflict = model, balancer, gate_loss, conflict
        self.updates, self.warmup, self.schedule, self.clip = updates, warmup, schedule, clip
        self.beta2 = beta2
        self.encoder_lr, self.decoder_lr, self.weight_decay = encoder_lr, decoder_lr, weight_decay
        self.gate_lr, self.balancer_lr = gate_lr, balancer_lr
        self.names = tuple(model.tasks)
        self.shared = shared_parameters(model.encoder, balancer)
        self.register_buffer("loss_sum", torch.zeros(len(self.names)))
        self.register_buffer("loss_count", torch.zeros(len(self.names)))

    def forward(self, batch: Batch, batch_index: int) -> Tensor:
        """The loss of a batch, ready for `backward`; `batch_index` counts within the epoch."""
        if self.conflict is None:
            losses = self.model.losses(batch, self.model(batch))
        else:
            with self.conflict.watching(batch_index) as outputs:
                losses = self.model.losses(batch, self.model(batch))
            self.conflict.add(outputs, losses)
        rank_losses = self._stacked(losses)
        present = torch.tensor([batch.units.get(name, 0) > 0 for name in self.names]).to(
            rank_losses.device, non_blocking=True
        )
        batch_losses = rank_losses.detach().clone()
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(batch_losses)
        gram = gram_matrix(losses, self.names, self.shared) if self.shared else None
        weights = self.balancer(batch_losses, gram, present)
        if dist.is_available() and dist.is_initialized():
            dist.broadcast(weights.detach(), 0)  # each rank's PCGrad draws an order of its own
        self.loss_sum += batch_losses
        self.loss_count += present
        # DDP averages gradients over ranks, while a batch's loss is the sum of the ranks' parts: hence the
        # factor. The balancer's own parameters and the gates' costs see the losses of all ranks.
        ranks = self.trainer.world_size
        total = (weights.detach() * rank_losses).sum() * ranks
        if weights.requires_grad:
            total = total + (weights * batch_losses).sum() + self.balancer.regulariser(present)
        if self.gate_loss is not None:
            total = total + self.gate_loss(self.global_step, weights.detach() * batch_losses)
        return total

    def _stacked(self, losses: dict[str, Tensor]) -> Float[Tensor, " task"]:
        """The losses of all tasks, in float32; 0 for tasks without a loss."""
        zero = torch.zeros((), device=self.device)
        return torch.stack([losses[name].float() if name in losses else zero for name in self.names])

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """The loss of one batch."""
        return self(batch, index)

    def on_train_epoch_start(self) -> None:
        """Start the epoch's mean losses from zero."""
        self.loss_sum.zero_()
        self.loss_count.zero_()

    def mean_losses(self) -> dict[str, float]:
        """Each task's loss per `Task.unit`, averaged over the epoch's batches so far that have the task."""
        means = (self.loss_sum / self.loss_count.clamp(min=1)).tolist()
        return dict(zip(self.names, means, strict=True))

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip encoder and decoders by their common norm; gates and balancer are not clipped.

        The fused AdamW divides all gradients by `grad_scale` as it reads them, which saves a pass over those
        of encoder and decoders. The other gradients are multiplied by it beforehand.
        """
        if not self.clip:
            return
        clipped, others = (
            [
                parameter.grad
                for group in optimizer.param_groups
                if group["clip"] == clips
                for parameter in group["params"]
                if parameter.grad is not None
            ]
            for clips in (True, False)
        )
        norm = nn.utils.get_total_norm(clipped).float()
        scale = ((norm + 1e-6) / self.clip).clamp(min=1.0)
        for gradient in others:
            gradient.mul_(scale)
        # AdamW's `step` reads both attributes; torch declares neither.
        vars(optimizer).update(grad_scale=scale, found_inf=torch.zeros_like(scale))

    def configure_optimizers(self) -> Any:
        """One AdamW with groups by learning rate and weight decay, and the schedule of the rates.

        The rates of encoder and decoders follow the schedule; those of gates and balancer are constant.
        """
        groups = list(self._groups())
        optimizer = torch.optim.AdamW(groups, betas=(0.9, self.beta2), fused=True)
        # The gates are held to their target as a part of the update: at a batch's end Lightning calls the
        # callbacks, one of which writes checkpoints, before the module's own hook.
        optimizer.register_step_post_hook(self._hold_gates)

        def factor(update: int) -> float:
            return rate_factor(update, self.updates, self.warmup, self.schedule)

        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, [factor if group["clip"] else _constant for group in groups]
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _hold_gates(self, *_: Any) -> None:
        """Hold the gates to their target's choice; called after each step of the optimizer."""
        if self.gate_loss is not None:
            self.gate_loss.after_update(self.global_step + 1)  # Lightning counts the update later

    def _groups(self) -> Iterator[dict[str, Any]]:
        """Groups of parameters for AdamW; `clip`: clipped, and with a rate that follows the schedule."""
        for module, rate in ((self.model.encoder, self.encoder_lr), (self.model.decoders, self.decoder_lr)):
            trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
            for matrices in (True, False):
                chosen = [parameter for parameter in trained if (parameter.ndim > 1) == matrices]
                if chosen:
                    decay = self.weight_decay if matrices else 0.0
                    yield {"params": chosen, "lr": rate, "weight_decay": decay, "clip": True}
        if self.gate_loss is not None:
            yield {
                "params": list(self.gate_loss.gates.parameters()),
                "lr": self.gate_lr, "weight_decay": 0.0, "clip": False,
            }  # fmt: skip
        learned = list(self.balancer.parameters())
        if learned:
            yield {"params": learned, "lr": self.balancer_lr, "weight_decay": 0.0, "clip": False}


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


def _constant(update: int) -> float:
    return 1.0
