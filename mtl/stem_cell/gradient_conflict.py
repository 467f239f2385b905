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
from torch import Tensor

from mtl.heads.tap import HeadOutputs, HeadTap
from mtl.probes.tables import heads_table as table
from mtl.runs.folder.run import Run
from mtl.runs.folder.run_tables import write_measures
from mtl.training.balancers import as_in_backward
from mtl.training.step import StepMeter

MEASURE = "gradient_conflict"


class GradientConflict(StepMeter):
    """The mean cosine per head and pair of tasks over the measured updates of an epoch.

    It compares the gradients of the tasks' losses with respect to the head's output (the input of its layer's
    output projection) at all positions of the update's batches on all ranks. A pair counts in an update if
    neither gradient is zero. Every `every`-th update of an epoch is measured, from the first on.
    """

    name = "conflict"
    total: Tensor
    steps: Tensor

    def __init__(self, tap: HeadTap, tasks: Sequence[str], every: int) -> None:
        super().__init__()
        self.tap, self.every = tap, every
        self.tasks = tuple(tasks)
        self.pairs = list(combinations(range(len(self.tasks)), 2))
        shape = (len(self.pairs), len(tap.sites), tap.heads)
        # Buffers are equal on all ranks, so a rank's part of an unfinished update is not a buffer.
        self.register_buffer("total", torch.zeros(shape))
        self.register_buffer("steps", torch.zeros(shape, dtype=torch.long))
        self._products: Float[Tensor, "task task site head"] | None = None

    @contextmanager
    def watching(self, update: int) -> Iterator[HeadOutputs | list[Tensor]]:
        """Collect the head outputs of a forward pass, per site; none in updates that are not measured."""
        if update % self.every:
            yield []
            return
        with self.tap.observe() as outputs:
            yield outputs

    def add(self, seen: HeadOutputs | list[Tensor], losses: Mapping[str, Tensor], ends: bool = True) -> None:
        """Add the gradients of a pass's losses; `ends`: the pass is the last one of its update."""
        if not len(seen):
            return
        sites = list(seen)
        none = torch.zeros_like(_per_head(sites))
        with as_in_backward(none.device):
            gradients = torch.stack(
                [
                    _per_head(torch.autograd.grad(losses[task], sites, retain_graph=True))
                    if task in losses
                    else none
                    for task in self.tasks
                ]
            )
            products = torch.einsum("ashx,bshx->absh", gradients, gradients)
        self._products = products if self._products is None else self._products + products
        if ends:
            self._add_update(self._products)
            self._products = None

    def record(self, run: Run) -> ConflictRecord:
        return ConflictRecord(run, self)

    def _add_update(self, products: Float[Tensor, "task task site head"]) -> None:
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(products)
        for pair, (one, other) in enumerate(self.pairs):
            norms = products[one, one].sqrt() * products[other, other].sqrt()
            both_nonzero = norms > 0
            cosines = products[one, other] / norms.clamp(min=1e-38)
            self.total[pair] += torch.where(both_nonzero, cosines, 0.0)
            self.steps[pair] += both_nonzero

    def rows(self, epoch: int) -> list[dict[str, Any]]:
        """The epoch's means as rows of heads.parquet, in which `choice` is the epoch; resets the sums."""
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
    return torch.stack([gradient.detach().float().movedim(2, 0).flatten(1) for gradient in gradients])


class ConflictRecord(pl.Callback):
    """Writes every epoch's means to the run's heads.parquet."""

    def __init__(self, run: Run, conflict: GradientConflict) -> None:
        self.run, self.conflict = run, conflict
        self.rows: list[dict[str, Any]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the epoch's rows."""
        self.rows += self.conflict.rows(trainer.current_epoch + 1)
        if trainer.is_global_zero:
            rows = polars.DataFrame(self.rows, schema=table.SCHEMA)
            provenance = {f"{MEASURE}.run": str(self.run.folder.resolve())}
            write_measures(self.run.folder / "heads.parquet", rows, [MEASURE], provenance)

    def state_dict(self) -> dict[str, Any]:
        """The rows so far."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the rows of finished epochs."""
        self.rows = state_dict["rows"]
