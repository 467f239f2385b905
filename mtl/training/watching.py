"""Someone who looks at every evaluation of a run and may end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl

from mtl.training.evaluation import Evaluation

Watch = Callable[[Mapping[str, Any]], bool]
"""Takes a row of the history; true: the run is to end here, as if it had run out of patience."""


class Watched(pl.Callback):
    """Shows the rows of an evaluation to a watcher; stands after the evaluation."""

    def __init__(self, evaluation: Evaluation, watch: Watch) -> None:
        self.evaluation, self.watch = evaluation, watch

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the row of this epoch, if it was evaluated."""
        history = self.evaluation.history
        if history and history[-1]["epoch"] == trainer.current_epoch + 1 and self.watch(history[-1]):
            trainer.should_stop = True
