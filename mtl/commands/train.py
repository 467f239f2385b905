"""`mtl train`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mtl.commands.score_table import print_scores
from mtl.config.schema import TrainConfig
from mtl.runs.folder.run import Run
from mtl.study.sweep.wandb_server import under_agent
from mtl.workers.collector import importing
from mtl.workers.launch import Place, placed
from mtl.workers.worker import interrupted_by_signals


def train(config: TrainConfig, given: Mapping[str, Any]) -> int:
    """Train the chosen tasks on a shared encoder, or resume where the run stopped."""
    with placed(config.trainer.devices, config.trainer.num_nodes) as place, interrupted_by_signals():
        try:
            return _train(config, given, place)
        except KeyboardInterrupt:
            # The process that started this one reports it, and must not take it for a failure.
            if place.started_by == "mtl":
                return 0
            raise


def _train(config: TrainConfig, given: Mapping[str, Any], place: Place) -> int:
    with importing():
        from rich.console import Console

        from mtl.analysis.observers import default_observers
        from mtl.training.initial_model import refuse_given
        from mtl.training.train import train

    refuse_given(config, given)
    config = under_agent(config, os.environ)
    console = Console(markup=False, emoji=False, quiet=not place.is_first)
    run = train(config, console=console, observers=default_observers(config, console))
    if place.is_first:
        print_run(run)
    return 0


def print_run(run: Run) -> None:
    """Print a finished run's scores, or how to get them if their file is gone."""
    if (run.folder / "metrics.json").exists():
        print_scores(run.metrics(), str(run.folder))
    else:
        print(f"{run.folder} has no metrics.json: 'mtl evaluate {run.folder}' scores its model again")
