"""Weights & Biases: a view of a run, whose own files are the truth."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger

from mtl.config.schema import TrainConfig
from mtl.models.evaluate import Scores
from mtl.runs.run import Run
from mtl.runs.wandb_view import STEP, View, view_of


class RunLogger(Logger):
    """What Lightning tells loggers, told to a run's view."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view

    @property
    def name(self) -> str:
        """The project."""
        return self.view.wandb.project

    @property
    def version(self) -> str:
        """The id of the W&B run."""
        return self.view.identity

    @property
    def experiment(self) -> View:
        """The view, begun: Lightning asks for it before training."""
        self.view.begin()
        return self.view

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log figures of an update."""
        self.view.log(metrics if step is None else {**metrics, STEP: step}, step)

    def log_picture(self, key: str, picture: Path, step: int) -> None:
        """Log a picture of an update."""
        self.view.log({key: picture, STEP: step}, step)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the view has the whole configuration."""

    def finalize(self, status: str) -> None:
        """End the view of a run that has failed or was interrupted; of others, `finish` does."""
        if status != "success":
            self.view.end(failed=True)


def wandb_logger(config: TrainConfig, run: Run) -> RunLogger:
    """A logger for the run."""
    return RunLogger(view_of(config, run))


def finish(logger: RunLogger, metrics: dict[str, Scores]) -> None:
    """Log the final scores, and the masks' history and animation if there are masks; end the W&B run."""
    view = logger.view
    gates, animation = view.folder / "gates.parquet", view.folder / "masks.gif"
    masked = gates.is_file()
    view.log(flat(metrics) | ({"masks_animation": animation} if masked and animation.is_file() else {}))
    if masked:
        view.keep(f"gates-{view.identity}", "gates", [gates])
    view.end()


def flat(metrics: Mapping[str, Scores]) -> dict[str, Any]:
    """Scores by split, task and name."""
    return {
        f"{split}/{name}/{key}": value
        for split, scores in metrics.items()
        for name, figures in scores.items()
        for key, value in figures.items()
    }
