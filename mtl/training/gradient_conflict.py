"""Whether tasks pull a head in opposite directions: the cosine of their gradients at the head's output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import polars
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from mtl.files import whole_file
from mtl.heads.tap import HeadOutputs, HeadTap
from mtl.runs.run import Run
from probes import heads_table as table

MEASURE = "gradient_conflict"


class GradientConflict(nn.Module):
    """Mean cosine per head and pair of tasks over the measured steps of an epoch.

    A gradient is that of a task's loss with respect to the head's output (the input of its layer's output
    projection) at all positions of a rank's batch. A pair counts in steps where neither gradient is zero.
    Every `every`-th batch of an epoch is measured.
    """

    total: Tensor
    steps: Tensor

    def __init__(self, tap: HeadTap, tasks: Sequence[str], every: int) -> None:
        super().__init__()
        self.tap, self.every = tap, every
        self.tasks = tuple(tasks)
        self.pairs = list(combinations(range(len(self.tasks)), 2))
        shape = (len(self.pairs), len(tap.sites), tap.heads)
        self.register_buffer("total", torch.zeros(shape))
        self.register_buffer("steps", torch.zeros(shape, dtype=torch.long))

    @contextmanager
    def watching(self, step: int) -> Iterator[HeadOutputs | list[Tensor]]:
        """Collect the head outputs of a forward pass, per site; empty for steps that are not measured."""
        if step % self.every:
            yield []
            return
        with self.tap.observe() as outputs:
            yield outputs

    def add(self, outputs: HeadOutputs | list[Tensor], losses: Mapping[str, Tensor]) -> None:
        """Measure the losses of one forward pass, before its backward pass."""
        if not len(outputs):
            return
        sites = list(outputs)
        gradients = [
            _per_head(torch.autograd.grad(losses[task], sites, retain_graph=True)) if task in losses else None
            for task in self.tasks
        ]
        for pair, (first, second) in enumerate(self.pairs):
            one, other = gradients[first], gradients[second]
            if one is None or other is None:
                continue
            norms = one.norm(dim=2) * other.norm(dim=2)
            both_nonzero = norms > 0
            cosines = (one * other).sum(2) / norms.clamp(min=1e-38)
            self.total[pair] += torch.where(both_nonzero, cosines, 0.0)
            self.steps[pair] += both_nonzero

    def rows(self, epoch: int) -> list[dict[str, Any]]:
        """The epoch's means over all ranks as rows of heads.parquet, `choice` the epoch; resets the sums."""
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(self.total)
            dist.all_reduce(self.steps)
        means, steps = (self.total / self.steps.clamp(min=1)).tolist(), self.steps.tolist()
        rows = [
            {
                "measure": MEASURE, "task": "", "label": f"{self.tasks[first]}-{self.tasks[second]}",
                "attention": site.attention, "layer": site.layer, "head": head,
                "value": means[pair][row][head], "count": steps[pair][row][head],
                "choice": f"epoch {epoch}",
            }
            for pair, (first, second) in enumerate(self.pairs)
            for row, site in enumerate(self.tap.sites)
            for head in range(self.tap.heads)
            if steps[pair][row][head]
        ]  # fmt: skip
        self.total.zero_()
        self.steps.zero_()
        return rows


def _per_head(
    gradients: Sequence[Float[Tensor, "row subword head head_dim"]],
) -> Float[Tensor, "site head _"]:
    return torch.stack([gradient.float().movedim(2, 0).flatten(1) for gradient in gradients])


class ConflictRecord(pl.Callback):
    """Writes every epoch's means to the run's heads.parquet."""

    def __init__(self, run: Run, conflict: GradientConflict) -> None:
        self.run, self.conflict = run, conflict
        self.rows: list[dict[str, Any]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the epoch's rows."""
        self.rows += self.conflict.rows(trainer.current_epoch + 1)
        if trainer.is_global_zero:
            with whole_file(self.run.folder / "heads.parquet") as path:
                table.write(
                    path, polars.DataFrame(self.rows, schema=table.SCHEMA), {"run": str(self.run.folder)}
                )

    def state_dict(self) -> dict[str, Any]:
        """The rows so far."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the rows of the epochs that are done."""
        self.rows = state_dict["rows"]
