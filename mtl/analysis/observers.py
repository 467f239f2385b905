"""The observers that a run has by default: progress, pictures of masks, importance over time, loggers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import polars
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

from mtl.analysis.importance import task_importance
from mtl.analysis.probing.probe import BATCH_TOKENS
from mtl.analysis.run_loggers import RunLoggers, loggers_of
from mtl.config.schema import TrainConfig
from mtl.files import whole_file
from mtl.heads.gates import gate_summary, open_heads_text
from mtl.models.batches import Batch, BatchLoader, Example, aligned_batches, examples
from mtl.models.evaluate import Scores
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.probes.figures.masks import animation, mask_picture
from mtl.probes.tables.table_files import read_parquet
from mtl.runs.folder.run import Run
from mtl.runs.folder.run_tables import add_importance
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task
from mtl.training.evaluation import Observer
from mtl.training.step import JointTraining


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
