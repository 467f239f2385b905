"""Weights & Biases shows a run; nothing is read back from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtl.config.schema import TrainConfig
from mtl.models.evaluate import Scores
from mtl.runs.folder.run import Run
from mtl.runs.folder.wandb_view import STEP, View, flat_scores, view_of
from mtl.training.observer import Observer


class WandbLogger(Observer):
    """Logs a run's evaluations, pictures of its masks and its final scores."""

    def __init__(self) -> None:
        self._view: View | None = None

    def on_run_start(self, config: TrainConfig, run: Run) -> None:
        """Start the W&B run, or resume it."""
        self._view = view_of(config, run)
        self._view.begin()

    def on_evaluation(self, row: Mapping[str, Any]) -> bool:
        """Log the numbers, and the picture of the masks if there is one."""
        if self._view is not None:
            picture = self._view.folder / "masks.png"
            values: dict[str, Any] = {key: value for key, value in row.items() if key != "seconds"}
            values |= {STEP: row["update"]} | ({"masks": picture} if picture.is_file() else {})
            self._view.log(values, row["update"])
        return False

    def on_final_scores(self, scores: Mapping[str, Scores]) -> None:
        """Log the scores, and the masks' history and animation if there are masks; end the W&B run."""
        if self._view is None:
            return
        gates, animation = self._view.folder / "gates.parquet", self._view.folder / "masks.gif"
        self._view.log(flat_scores(scores) | ({"masks_animation": animation} if animation.is_file() else {}))
        if gates.is_file():
            self._view.keep(f"gates-{self._view.identity}", "gates", [gates])
        self._view.end()

    def on_run_failure(self) -> None:
        """End the W&B run as failed."""
        if self._view is not None:
            self._view.end(failed=True)
