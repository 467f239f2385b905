"""The observers that a run has by default: progress, pictures of masks, importance over time, and loggers.

Loggers are W&B and those of Lightning: they get the run's updates, its evaluations, and what it keeps.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import polars
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
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
from torch import Tensor

from mtl.analysis.importance import task_importance
from mtl.analysis.trained import BATCH_TOKENS
from mtl.config.effective import plain
from mtl.config.schema import LoggerName, TrainConfig
from mtl.files import whole_file
from mtl.heads.gate_file import last_gates
from mtl.heads.gates import gate_summary, open_heads_text
from mtl.models.batches import Batch, BatchLoader, Example, aligned_batches, examples
from mtl.models.evaluate import Scores
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.probes.figures.masks import animation, mask_picture
from mtl.probes.tables.table_files import read_csv, read_parquet
from mtl.runs.folder.run import Run
from mtl.runs.folder.run_tables import add_importance
from mtl.runs.folder.wandb_view import STEP, WandbView, final_scores, view_of, wandb_mode
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task
from mtl.training.evaluation import Observer
from mtl.training.step import JointTraining, on_its_way


def default_observers(
    config: TrainConfig, console: Console, inputs: InputCache | None = None
) -> list[Observer]:
    """Pictures of the masks; a progress bar on terminals; importance and loggers if they are configured.

    If `inputs` are those of the run, its corpora are read once.
    """
    observers: list[Observer] = [MaskPictures(), ProgressLine(console)]
    if config.importance_every:
        inputs = inputs or InputCache()
        observers.append(ImportanceOverTime(config.importance_every, config.importance_sentences, inputs))
    if loggers := loggers_of(config):
        observers.append(RunLoggers(loggers, config.log_every))
    return observers


class ImportanceOverTime(Observer):
    """Measures importance on sentences of dev after evaluations, and adds it to the run's importance.parquet.

    It changes neither weights nor gradients nor random states: dropout is off, and only gates have gradients.
    If a resumed run repeats an evaluation, its rows are replaced.

    Args:
        every: The number of evaluations from one measurement to the next; the last epoch is always measured.
        sentences: The least number of annotated sentences of dev for each task (`first_annotated`).
        inputs: Reads the corpus.
    """

    def __init__(self, every: int, sentences: int, inputs: InputCache) -> None:
        self.every, self.sentences, self.inputs = every, sentences, inputs
        self._config: TrainConfig | None = None
        self._run: Run | None = None
        self._model: JointModel | None = None
        self._corpus: list[Example] = []

    def on_run_start(self, config: TrainConfig, run: Run) -> None:
        """Remember what is trained, and where it is written."""
        self._config, self._run = config, run

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Choose the sentences."""
        assert isinstance(pl_module, JointTraining)
        assert self._config is not None
        model = pl_module.model
        dev = self.inputs.split(self._config.corpus, tuple(model.tasks), "dev")
        chosen = first_annotated(dev, model.tasks, self.sentences)
        self._corpus = examples(chosen, model.encoder.tokenizer, model.tasks, model.labels)
        self._model = model

    def on_evaluation(self, row: Mapping[str, Any]) -> bool:
        """Measure if a measurement is due; never ends the run."""
        model, config, run = self._model, self._config, self._run
        assert model is not None
        assert config is not None
        assert run is not None
        epoch = int(row["epoch"])
        evaluation = -(-epoch // config.evaluate_every)
        if evaluation % self.every and epoch != config.max_epochs:
            return False
        plan = aligned_batches(self._corpus, tuple(model.tasks), BATCH_TOKENS, None, None)
        batches = BatchLoader(self._corpus, model.encoder.tokenizer, model.tasks, plan)
        measured = task_importance(model, batches)
        tables = [gradients.table(name) for name, gradients in measured.items()]
        heads = polars.concat(tables).filter(polars.col("measure") == "importance")
        add_importance(run, heads.with_columns(step=polars.lit(int(row["update"]))))
        return False


def first_annotated(sentences: Sequence[Sentence], tasks: Mapping[str, Task], most: int) -> list[Sentence]:
    """The first sentences such that each task has at least `most` annotated ones, or all that there are."""
    chosen, counts = [], dict.fromkeys(tasks, 0)
    for sentence in sentences:
        wanted = [name for name, task in tasks.items() if task.annotated(sentence)]
        if any(counts[name] < most for name in wanted):
            chosen.append(sentence)
            for name in wanted:
                counts[name] += 1
    return chosen


class MaskPictures(Observer):
    """Draws the masks at every evaluation (masks.png) and, at the end, their history (masks.gif)."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._masked = self._shared = False

    def on_run_start(self, config: TrainConfig, run: Run) -> None:
        """Remember where to draw."""
        self._run = run
        self._masked, self._shared = config.pruning != "none", config.gates.scope == "shared"

    def on_evaluation(self, row: Mapping[str, Any]) -> bool:
        """Draw the current masks."""
        if self._masked and self._run is not None:
            figure = mask_picture(self._table(self._run))
            with whole_file(self._run.folder / "masks.png") as path:
                figure.savefig(path, format="png")
            plt.close(figure)
        return False

    def on_final_scores(self, scores: Mapping[str, Scores]) -> None:
        """Draw the animation."""
        if self._run is not None and (self._run.folder / "gates.parquet").exists():
            with whole_file(self._run.folder / "masks.gif") as path:
                animation(self._table(self._run), path)

    def _table(self, run: Run) -> polars.DataFrame:
        """The gates so far; a shared mask appears once, not once per task."""
        table = read_parquet(run.folder / "gates.parquet")
        if self._shared:
            task = table["task"][0]
            table = table.filter(polars.col("task") == task).with_columns(task=polars.lit("shared"))
        return table


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
            notes=open_heads_text({} if gates is None else gate_summary(gates)),
        )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the bar."""
        self._progress.stop()

    def on_run_failure(self) -> None:
        """Remove the bar."""
        self._progress.stop()


UPDATES = "updates.jsonl"
"""The file in a run's folder with what its loggers have of its updates, which a resumed run logs again."""


def loggers_of(config: TrainConfig) -> tuple[LoggerName, ...]:
    """The loggers of a run, each once; W&B is one of them as `wandb.mode` says."""
    others = [name for name in dict.fromkeys(config.loggers) if name != "wandb"]
    wandb: list[LoggerName] = [] if wandb_mode(config) == "disabled" else ["wandb"]
    return (*wandb, *others)


@dataclass(frozen=True)
class _Taken:
    """The row of an update, whose numbers are on their way from the device."""

    row: dict[str, Any]
    names: Sequence[str]
    values: Tensor
    arrived: Callable[[], object]


class RunLoggers(Observer):
    """Logs a run's updates and evaluations, pictures of its masks, its final scores and what it keeps.

    Rows go by the number of updates. A resumed run logs again what a logger may lack, from the run's own
    files, and then only what is new: no row is there twice, and none is missing.

    The numbers of an update are read from the device one update later, so that training does not wait for
    them.

    Args:
        names: The loggers.
        every: Updates from one row of an update to the next; 0: there are none.
    """

    def __init__(self, names: Sequence[LoggerName], every: int) -> None:
        self.names, self.every = names, every
        self._config = TrainConfig()
        self._run: Run | None = None
        self._view: WandbView | None = None
        self._loggers: list[CSVLogger | TensorBoardLogger] = []
        self._last = 0
        self._last_evaluation = 0
        self._taken: _Taken | None = None
        self._module: JointTraining | None = None
        self._sums: list[Tensor] = []
        self._weights: Tensor | None = None
        self._sentences, self._since, self._seen = 0, 0.0, 0

    def on_run_start(self, config: TrainConfig, run: Run) -> None:
        """Start the loggers; those of a resumed run get the rows that they may lack."""
        self._config, self._run = config, run
        if "wandb" in self.names:
            self._view = view_of(config, run)
            self._view.begin()
        settings = plain(dataclasses.asdict(config))
        for name in self.names:
            if name != "wandb":
                shutil.rmtree(run.folder / name, ignore_errors=True)  # it is written again from the start
                self._loggers.append(logger_in(run.folder, name))
                self._loggers[-1].log_hyperparams(settings)
        rows = _rows_of_updates(run.folder / UPDATES)
        self._last = max(rows, default=0)
        if (run.folder / "history.csv").is_file():
            for row in read_csv(run.folder / "history.csv").rows(named=True):
                self._last_evaluation = row["update"]
                rows[row["update"]] = rows.get(row["update"], {}) | row
        for update in sorted(rows):
            self._log(rows[update], pictured=update == self._last_evaluation)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        assert isinstance(pl_module, JointTraining)
        self._module = pl_module
        self._sums = [values.to(pl_module.device) for values in self._sums]
        if self._weights is not None:
            pl_module.task_weights = self._weights.to(pl_module.device)
        self._sentences, self._since, self._seen = 0, time.monotonic(), trainer.global_step

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the losses and the clock again, which do not go over an evaluation."""
        self._sums, self._sentences, self._since = [], 0, time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Count the sentences, and take the numbers of an update that is due."""
        assert isinstance(pl_module, JointTraining)
        self._sentences += 0 if batch.idle else len(batch.sentences)
        update = trainer.global_step
        if update == self._seen:
            return
        self._seen = update
        self._write()
        if self.every and update % self.every == 0:
            done = (batch_idx + 1) / float(trainer.num_training_batches)
            self._take(pl_module, {"epoch": round(trainer.current_epoch + done, 4), "update": update})

    def _take(self, module: JointTraining, row: dict[str, Any]) -> None:
        now = time.monotonic()
        rate = self._sentences * module.trainer.world_size / max(now - self._since, 1e-9)
        numbers = {
            **{f"updates/learning_rate/{part}": rate for part, rate in module.learning_rates.items()},
            "updates/sentences_per_second": round(rate, 1),
        }
        sums = [module.loss_sum.clone(), module.loss_count.clone()]
        before = self._sums or [torch.zeros_like(values) for values in sums]
        # A task that no update since the last row had has no mean: 0 / 0 is NaN.
        losses = (sums[0] - before[0]) / (sums[1] - before[1])
        several = len(module.names) > 1
        weights = [module.task_weights] if several else []
        values, arrived = on_its_way(torch.cat([losses, module.gradient_norm[None].to(losses), *weights]))
        names = [
            *(f"updates/loss/{name}" for name in module.names),
            "updates/gradient_norm",
            *(f"updates/weight/{name}" for name in module.names if several),
        ]
        self._taken = _Taken(row | numbers, names, values, arrived)
        self._sums, self._sentences, self._since = sums, 0, now

    def _write(self) -> None:
        """Log the row that was taken, if any."""
        if row := self._arrived():
            self._log(row)

    def _arrived(self) -> dict[str, Any]:
        """The row that was taken, now that its numbers are here, and kept in the run's folder.

        Empty if none was, or if it was logged before the run was resumed.
        """
        taken, self._taken = self._taken, None
        if taken is None or self._run is None or taken.row["update"] <= self._last:
            return {}
        taken.arrived()
        numbers = zip(taken.names, taken.values.tolist(), strict=True)
        row = taken.row | {name: float(f"{value:.6g}") for name, value in numbers if math.isfinite(value)}
        with (self._run.folder / UPDATES).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row)}\n")
        self._last = row["update"]
        return row

    def on_evaluation(self, row: Mapping[str, Any]) -> bool:
        """Log the numbers, and the picture of the masks if there is one."""
        of_update = self._arrived()
        if of_update and of_update["update"] != row["update"]:
            self._log(of_update)
            of_update = {}
        if row["update"] > self._last_evaluation:
            self._last_evaluation = row["update"]
            self._log({**of_update, **row}, pictured=True)
        return False

    def _log(self, row: Mapping[str, Any], pictured: bool = False) -> None:
        """Log a row of numbers; `pictured`: and masks.png, which is of this row."""
        assert self._run is not None
        update, picture = row["update"], self._run.folder / "masks.png"
        numbers: dict[str, Any] = {
            key: value for key, value in row.items() if key != "seconds" and value is not None
        }
        pictures = {"masks": picture} if pictured and picture.is_file() else {}
        if self._view is not None:
            self._view.log_row({**numbers, STEP: update, **pictures}, update)
        for logger in self._loggers:
            logger.log_metrics(numbers, update)
            if isinstance(logger, TensorBoardLogger):
                for name, path in pictures.items():
                    logger.experiment.add_image(name, plt.imread(path)[..., :3], update, dataformats="HWC")
            logger.save()

    def on_final_scores(self, scores: Mapping[str, Scores]) -> None:
        """Log the scores, and what the run keeps; end the loggers."""
        self._write()
        final = final_scores(self._config, scores)
        for logger in self._loggers:
            if isinstance(logger, TensorBoardLogger):
                settings = plain(dataclasses.asdict(self._config))
                logger.log_hyperparams(settings, final, self._last_evaluation)
            else:
                logger.log_metrics({**final}, self._last_evaluation)
            logger.finalize("success")
        if self._view is not None and self._run is not None:
            self._keep(self._view, self._run, final)
            self._view.end()

    def _keep(self, view: WandbView, run: Run, final: Mapping[str, float]) -> None:
        gates, animation = run.folder / "gates.parquet", run.folder / "masks.gif"
        values: dict[str, Any] = {STEP: self._last_evaluation, **final}
        values |= {"masks_animation": animation} if animation.is_file() else {}
        values |= {"heads": last_gates(read_parquet(gates))} if gates.is_file() else {}
        view.log(values, self._last_evaluation)
        aliases = ["latest", "best" if self._config.keeps_best() else "last"]
        about = {**final, "kept_epoch": run.status().get("kept_epoch")}
        if gates.is_file():
            view.keep(f"gates-{view.identity}", "gates", [gates], aliases, about)
        if self._config.wandb.log_model:
            files = sorted(path for path in run.model.rglob("*") if path.is_file())
            view.keep(f"model-{view.identity}", "model", files, aliases, about)

    def on_run_failure(self) -> None:
        """End the loggers, W&B's as failed."""
        if self._taken is not None and float(self._taken.row["epoch"]).is_integer():
            self._taken = None  # a resumed run takes it again, and logs it together with the evaluation
        self._write()
        for logger in self._loggers:
            logger.finalize("failed")
        if self._view is not None:
            self._view.end(failed=True)

    def state_dict(self) -> dict[str, Any]:
        """What the next row needs; a row that was taken is written first, before the checkpoint is."""
        self._write()
        return {"sums": self._sums, "weights": None if self._module is None else self._module.task_weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self._sums, self._weights = state_dict["sums"], state_dict["weights"]


def logger_in(folder: Path, name: LoggerName) -> CSVLogger | TensorBoardLogger:
    """Lightning's logger of a name, which writes to the folder of that name in a run's folder.

    Raises `ModuleNotFoundError` if its library is not installed.
    """
    if name == "tensorboard":
        return TensorBoardLogger(folder, name="", version=name, default_hp_metric=False)
    return CSVLogger(folder, name="", version=name)


def _rows_of_updates(path: Path) -> dict[int, dict[str, Any]]:
    """The rows in a run's file by update; a line that a killed process left unfinished is taken out."""
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    if whole != lines:
        path.write_text("".join(whole), encoding="utf-8")
    rows = [json.loads(line) for line in whole]
    return {row["update"]: row for row in rows}
