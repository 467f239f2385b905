"""Observers: callbacks that watch a run without changing its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl

from mtl.config.schema import TrainConfig
from mtl.models.evaluate import Scores
from mtl.runs.folder.run import Run


class Observer(pl.Callback):
    """A Lightning callback with four more hooks; only the process that writes the run's files has observers.

    An observer must not change what the run computes; it may end the run after an evaluation.
    """

    def on_run_start(self, config: TrainConfig, run: Run) -> None:
        """Called when the run's folder is ready, before training or scoring starts or resumes."""

    def on_evaluation(self, row: Mapping[str, Any]) -> bool:
        """Called when an evaluation has been written to the run's folder; returning true ends the run.

        `row` is the evaluation's row in the history.
        """
        return False

    def on_final_scores(self, scores: Mapping[str, Scores]) -> None:
        """Called with the scores of the kept model, when the run is finished."""

    def on_run_failure(self) -> None:
        """Called when the run has failed or was interrupted."""


class AfterEvaluation(Observer):
    """Passes each row of the history to a function, which can end the run by returning true (for sweeps)."""

    def __init__(self, function: Callable[[Mapping[str, Any]], bool]) -> None:
        self.function = function

    def on_evaluation(self, row: Mapping[str, Any]) -> bool:
        """Ask the function."""
        return self.function(row)
