"""Importance of all heads at the evaluations of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars
import pytorch_lightning as pl

from mtl.analysis.importance.gradients import task_importance
from mtl.analysis.probing.observe import BATCH_TOKENS
from mtl.config.schema import TrainConfig
from mtl.models.batches import BatchLoader, Example, aligned_batches, examples
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.runs.folder.importance_history import add_importance
from mtl.runs.folder.run import Run
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task
from mtl.training.observer import Observer
from mtl.training.step import JointTraining


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
