"""Pictures of the masks while they are learned, for the run folder and W&B."""

from __future__ import annotations

import matplotlib.pyplot as plt
import polars
import pytorch_lightning as pl

from mtl.files import whole_file
from mtl.heads.gate_table import gate_table
from mtl.runs.run import Run
from mtl.training.evaluation import Evaluation
from mtl.training.step import JointTraining
from mtl.training.wandb_logger import RunLogger
from probes.figures.masks import animation, mask_picture


class MaskPictures(pl.Callback):
    """Draws the masks at every evaluation (masks.png), and at the end how heads were claimed (masks.gif)."""

    def __init__(self, run: Run, evaluation: Evaluation) -> None:
        self.run, self.evaluation = run, evaluation
        self._drawn = 0

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw, if there was an evaluation."""
        rows = self.evaluation.gates
        if not trainer.is_global_zero or len(rows) == self._drawn:
            return
        self._drawn = len(rows)
        figure = mask_picture(self._table(pl_module))
        picture = self.run.folder / "masks.png"
        with whole_file(picture) as path:
            figure.savefig(path, format="png")
        plt.close(figure)
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger):
                logger.log_picture("masks", picture, trainer.global_step)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the animation."""
        if trainer.is_global_zero and self.evaluation.gates:
            animation(self._table(pl_module), self.run.folder / "masks.gif")

    def _table(self, pl_module: pl.LightningModule) -> polars.DataFrame:
        """The gates so far; a mask that tasks share once only."""
        table = gate_table(self.evaluation.gates)
        assert isinstance(pl_module, JointTraining)
        gates = pl_module.model.gates
        if gates is not None and gates.masks == ("shared",):
            task = table["task"][0]
            table = table.filter(polars.col("task") == task).with_columns(task=polars.lit("shared"))
        return table
