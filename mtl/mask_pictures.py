"""Pictures of the masks while they are learned, for the run folder and W&B."""

from __future__ import annotations

import io

import matplotlib.pyplot as plt
import polars
import pytorch_lightning as pl
from PIL import Image
from pytorch_lightning.loggers import WandbLogger

from mtl.callbacks import Evaluation
from mtl.files import whole_file
from mtl.gating import gate_table
from mtl.module import JointTraining
from mtl.run import Run
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
        with whole_file(self.run.folder / "masks.png") as path:
            figure.savefig(path, format="png")
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                picture = io.BytesIO()
                figure.savefig(picture, format="png")
                logger.log_image("masks", [Image.open(picture)], step=trainer.global_step)
        plt.close(figure)

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
