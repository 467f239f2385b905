"""`mtl train`."""

from __future__ import annotations

import os

from mtl.commands.score_table import print_scores
from mtl.config.schema import TrainConfig
from mtl.runs.run import Run
from mtl.sweep.agent import under_agent


def train(config: TrainConfig) -> int:
    """Train the chosen tasks on a shared encoder, or go on where the run stopped."""
    from mtl.training.train import Interrupted, train

    try:
        run = train(under_agent(config, os.environ))
    except Interrupted:
        raise KeyboardInterrupt from None
    print_run(run)
    return 0


def print_run(run: Run) -> None:
    """Print a finished run's scores."""
    if (run.folder / "metrics.json").exists():
        print_scores(run.metrics(), str(run.folder))
