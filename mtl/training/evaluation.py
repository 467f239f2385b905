"""What happens beside a training run: evaluation and best model, checkpoints to go on from, progress."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
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

from mtl.files import whole_file, whole_folder
from mtl.models.batches import Batch
from mtl.models.evaluate import evaluate, mean_score
from mtl.runs.run import Run
from mtl.training.gate_loss import gate_rows, gate_summary, gate_table
from mtl.training.step import JointTraining


class Evaluation(pl.Callback):
    """Scores the model on dev, keeps history, gates and a model, and stops when it gets no better."""

    def __init__(
        self,
        run: Run,
        batches: Callable[[], Iterable[Batch]],
        every: int,
        patience: int | None,
        keep_best: bool,
        console: Console,
    ) -> None:
        self.run, self.batches, self.every, self.patience = run, batches, every, patience
        self.keep_best, self.console = keep_best, console
        self.history: list[dict[str, Any]] = []
        self.gates: list[dict[str, Any]] = []
        self.best = float("-inf")
        self.waited = 0
        self.seconds = 0.0
        self._since = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._since = time.monotonic()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluate, if it is this epoch's turn."""
        epoch = trainer.current_epoch + 1
        last = epoch == trainer.max_epochs
        if epoch % self.every and not last:
            return
        assert isinstance(pl_module, JointTraining)
        model = pl_module.model
        with trainer.precision_plugin.forward_context():
            scores = evaluate(model, self.batches())
        mean = mean_score(scores, model.tasks)
        losses = pl_module.mean_losses()
        now = time.monotonic()
        self.seconds, self._since = self.seconds + now - self._since, now
        settled = pl_module.gate_loss is None or pl_module.gate_loss.settled
        better = settled and mean > self.best
        if settled:
            self.best = max(self.best, mean)
            self.waited = 0 if better else self.waited + 1
        row: dict[str, Any] = {
            "epoch": epoch,
            "update": trainer.global_step,
            "seconds": round(self.seconds, 1),
        }
        row |= {f"loss/{name}": round(loss, 5) for name, loss in losses.items()}
        row |= {
            f"dev/{name}/{key}": round(value, 3)
            for name, row_ in scores.items()
            for key, value in row_.items()
        }
        row |= {"dev/mean": round(mean, 3)}
        gates = {} if model.gates is None else gate_summary(model.gates)
        row |= {
            f"gates/{mask}/{key}": round(value, 4)
            for mask, figures in gates.items()
            for key, value in figures.items()
        }
        self.history.append(row)
        if model.gates is not None:
            self.gates += gate_rows(model.gates, tuple(model.tasks), trainer.global_step)
        if trainer.is_global_zero:
            self.run.write_history(self.history)
            if self.gates:
                with whole_file(self.run.folder / "gates.parquet") as path:
                    gate_table(self.gates).write_parquet(path)
            if better or not self.keep_best:
                with whole_folder(self.run.model) as folder:
                    model.save(folder)
                self.run.update_status({"kept_epoch": epoch, "kept_dev_mean": mean})
            main = "  ".join(f"{name} {scores[name][task.score]:.1f}" for name, task in model.tasks.items())
            self.console.print(
                f"epoch {epoch:>3}  loss {sum(losses.values()):.3f}  {main}  mean {mean:.2f}"
                f"{' *' if better else ''}{open_heads(gates)}  [{self.seconds:.0f} s]",
                highlight=False,
                soft_wrap=True,
            )
        for logger in trainer.loggers:
            logger.log_metrics(
                {key: value for key, value in row.items() if key != "seconds"}, trainer.global_step
            )
        if self.patience is not None and self.waited >= self.patience:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """What a run that goes on must know."""
        return {name: getattr(self, name) for name in ("history", "gates", "best", "waited", "seconds")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what was known when the checkpoint was written."""
        for name, value in state_dict.items():
            setattr(self, name, value)


def open_heads(gates: Mapping[str, Mapping[str, float]]) -> str:
    """The numbers of open heads per mask, and of those expected open under sampling, for a line."""
    if not gates:
        return ""
    counts = (
        f"{mask} {figures['open']:.0f} ({figures['expected_l0']:.1f})" for mask, figures in gates.items()
    )
    return "  open (expected) " + ", ".join(counts)


class Resumption(pl.Callback):
    """Writes a checkpoint at every epoch's end, at intervals, and when the run is asked to stop.

    A checkpoint holds the state of the random generators, so that a run that goes on from it computes what
    it would have computed. `interrupted` tells that a signal ended the run.
    """

    def __init__(self, path: Path, minutes: float) -> None:
        self.path, self.minutes = path, minutes
        self.interrupted = False
        self._written = 0.0
        self._generators: dict[str, Any] = {}
        self._handlers: dict[signal.Signals, Any] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Turn a first Ctrl-C or SIGTERM into a stop after the current update; a second one stops at once."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._stop)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give the signals back."""
        self._give_back()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Give the signals back to a process that goes on without this run."""
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the random generators where they were."""
        self._written = time.monotonic()
        if self._generators:
            restore_generators(self._generators)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Write a checkpoint if it is time to, between updates."""
        # After the last batch comes the epoch's end with its evaluation, which a run that goes on from here
        # would leave out: the checkpoint is written there.
        if (batch_idx + 1) % trainer.accumulate_grad_batches or batch_idx + 1 == trainer.num_training_batches:
            return
        # Ranks do not see a clock or a signal at the same batch: several of them meet at epochs' ends only.
        due = self.interrupted or time.monotonic() - self._written > 60 * self.minutes
        if due and trainer.world_size == 1:
            self._write(trainer)
        if self.interrupted:
            raise KeyboardInterrupt

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write a checkpoint."""
        self._write(trainer)
        if self.interrupted:
            raise KeyboardInterrupt

    def _write(self, trainer: pl.Trainer) -> None:
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        trainer.save_checkpoint(temporary)  # every rank takes part, the first one writes
        if trainer.is_global_zero:
            temporary.replace(self.path)
        self._written = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """The state of the random generators."""
        return {"generators": generators()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember the generators' state until training starts."""
        self._generators = state_dict["generators"]


def generators() -> dict[str, Any]:
    """The state of all random generators that training draws from."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_generators(state: dict[str, Any]) -> None:
    """Put all random generators into a state that `generators` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


class ProgressLine(pl.Callback):
    """A progress bar per epoch with the mean loss, read from the device at most once a second."""

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
        """Take the bar away."""
        self._progress.stop()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Take the bar away."""
        self._progress.stop()
