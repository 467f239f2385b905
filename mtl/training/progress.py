"""The progress bar of a training run."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from mtl.heads.gate_table import gate_summary, open_heads
from mtl.models.batches import Batch
from mtl.training.observer import Observer
from mtl.training.step import JointTraining


class ProgressLine(Observer):
    """A progress bar per epoch; the loss is the epoch's mean, read from the device at most once a second."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}{task.fields[notes]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._shown = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the bar."""
        self._progress.start()
        self._task = self._progress.add_task("train", epoch="", loss="", notes="", total=None)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Move the bar."""
        now = time.monotonic()
        if self._task is None or self._progress.disable or now - self._shown < 1:
            return
        assert isinstance(pl_module, JointTraining)
        self._shown = now
        gates = pl_module.model.gates
        self._progress.update(
            self._task,
            completed=batch_idx + 1,
            total=trainer.num_training_batches,
            epoch=f"{trainer.current_epoch + 1}/{trainer.max_epochs}",
            loss=f"{sum(pl_module.mean_losses().values()):.3f}",
            notes=open_heads({} if gates is None else gate_summary(gates)),
        )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the bar."""
        self._progress.stop()

    def on_run_failure(self) -> None:
        """Remove the bar."""
        self._progress.stop()
