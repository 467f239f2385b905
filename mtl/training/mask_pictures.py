"""Pictures of the masks as they are learned, for the run folder and W&B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import polars
import pytorch_lightning as pl

from mtl.config.schema import TrainConfig
from mtl.files import whole_file
from mtl.probes.figures.masks import animation, mask_picture
from mtl.probes.tables.table_files import read_parquet
from mtl.runs.folder.run import Run
from mtl.training.observer import Observer


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

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the animation."""
        if self._run is not None and (self._run.folder / "gates.parquet").exists():
            animation(self._table(self._run), self._run.folder / "masks.gif")

    def _table(self, run: Run) -> polars.DataFrame:
        """The gates so far; a shared mask appears once, not once per task."""
        table = read_parquet(run.folder / "gates.parquet")
        if self._shared:
            task = table["task"][0]
            table = table.filter(polars.col("task") == task).with_columns(task=polars.lit("shared"))
        return table
