"""`mtl train`, also under an agent of W&B that starts it for each trial of a sweep."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtl.commands.common import print_scores
from mtl.config.parse import Words
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.runs.folder.run import Run
from mtl.workers.collector import importing
from mtl.workers.launch import ProcessPlace, clean_environment
from mtl.workers.queue import interrupted_by_signals


def train_command(words: Words[TrainConfig]) -> int:
    """Train the chosen tasks on a shared encoder, or resume where the run stopped."""
    words = dataclasses.replace(words, words=words_of_agent(words.words, os.environ))
    config, given = words.as_given()
    with (
        clean_environment(config.trainer.devices, config.trainer.num_nodes) as place,
        interrupted_by_signals(),
    ):
        try:
            return _train(config, given, place)
        except KeyboardInterrupt:
            # The process that started this one reports it, and must not take it for a failure.
            if place.started_by == "mtl":
                return 0
            raise


def _train(config: TrainConfig, given: Mapping[str, Any], place: ProcessPlace) -> int:
    with importing():
        from rich.console import Console

        from mtl.analysis.observers import default_observers
        from mtl.training.assembly import refuse_given
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
        from mtl.config.instances import kinds_in
        from mtl.runs.compare.scores import learned_nothing

        metrics, kinds = run.metrics(), kinds_in(run.config())
        print_scores(metrics, str(run.folder))
        for line in learned_nothing(metrics, {name: kind.score for name, kind in kinds.items()}).values():
            print(f"note: {line}")
    else:
        print(f"{run.folder} has no metrics.json: 'mtl evaluate {run.folder}' scores its model again")


def under_agent(config: TrainConfig, environment: Mapping[str, str]) -> TrainConfig:
    """The configuration; if an agent started this process, with a folder of its own and W&B switched on.

    The agent's commands differ only in the sweep's parameters, so that all runs would have the same folder.
    Therefore the folder's name contains the id of the run, which the agent puts into the environment.
    """
    sweep, run = environment.get("WANDB_SWEEP_ID"), environment.get("WANDB_RUN_ID")
    if not sweep or not run:
        return config
    if config.wandb.id is not None:
        raise InputError("wandb.id is the id of a single W&B run, and a sweep has several: leave it out")
    mode = config.wandb.mode
    if mode in (None, "disabled"):
        from mtl.runs.folder.wandb_view import mode_of_environment

        mode = mode_of_environment(environment)
    runs, name = Path(config.runs), config.run_name()
    return dataclasses.replace(
        config,
        # A resumed trial gets what it logged, with the folder and name that it was given here.
        runs=config.runs if runs.name == f"sweep-{sweep}" else str(runs / f"sweep-{sweep}"),
        name=name if name.endswith(f"-{run}") else f"{name}-{run}",
        wandb=dataclasses.replace(config.wandb, mode=mode),
    )


def words_of_agent(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The arguments; if an agent started this process, without those that W&B adds.

    For a trial that is resumed, the agent passes all that the run logged as its configuration: the keys of
    `mtl train`, W&B's own `_wandb`, and `git`.
    """
    if not environment.get("WANDB_SWEEP_ID") or not environment.get("WANDB_RUN_ID"):
        return list(words)
    return [word for word in words if not word.startswith(("--_wandb=", "--git="))]
