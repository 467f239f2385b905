"""Trials as training runs, and their outcomes."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from mtl.analysis.observers import default_observers
from mtl.config.instances import kinds_in
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.runs.folder.run import Run
from mtl.runs.folder.wandb_view import forget_single_run
from mtl.sweep.file import Sweep
from mtl.sweep.folder import Engine, Look, Outcome, SweepFolder
from mtl.sweep.trial_config import Mode, config_of_trial
from mtl.training.evaluation import AfterEvaluation
from mtl.training.train import train


@dataclass(frozen=True)
class Training:
    """Trains the trials of a sweep, one after another, with the same inputs in memory."""

    folder: SweepFolder
    sweep: Sweep
    base: Mapping[str, Any]
    mode: Mode
    inputs: InputCache

    def __call__(self, number: int, values: Mapping[str, Any], look: Look) -> Outcome:
        """Train, or resume training; returns the outcome, read from the run's folder."""
        config = config_of_trial(self.base, values, self.sweep, number, self.folder.runs, self.mode)
        metric = self.sweep.metric.name

        def watch(row: Mapping[str, Any]) -> bool:
            # Stopping after the last epoch would save nothing.
            value = logged_metric(row, metric)
            return row["epoch"] < config.max_epochs and look(
                math.ceil(row["epoch"] / config.evaluate_every), value
            )

        console = Console(markup=False, emoji=False, width=120)
        observers = [*default_observers(config, console, self.inputs), AfterEvaluation(watch)]
        run = train(config, console=console, inputs=self.inputs, observers=observers)
        return outcome(run, metric)


def work_on_sweep(folder: Path, limit: str, mode: Mode) -> None:
    """Do trials of the sweep in a folder until none is left; `limit` is the most trials of all processes."""
    forget_single_run()
    place = SweepFolder(folder)
    sweep, base, _ = place.read_sweep()
    Engine(place, sweep, Training(place, sweep, base, mode, InputCache(keep=True)), int(limit)).work()


def outcome(run: Run, metric: str) -> Outcome:
    """The metric and the open heads at the epoch whose model the run keeps."""
    epoch = int(run.status()["kept_epoch"])
    with (run.folder / "history.csv").open(encoding="utf-8", newline="") as file:
        row: dict[str, Any] = next(row for row in csv.DictReader(file) if int(row["epoch"]) == epoch)
    if run.config().get("keep") == "average":  # whose scores the history does not have
        scores, kinds = run.metrics()["dev"], kinds_in(run.config())
        row |= {f"dev/{task}/{key}": of[key] for task, of in scores.items() for key in of}
        row["dev/mean"] = sum(of[kinds[task].score] for task, of in scores.items()) / len(scores)
    heads = {
        key.split("/")[1]: float(value)
        for key, value in row.items()
        if key.startswith("gates/") and key.endswith("/open") and value
    }
    return Outcome(logged_metric(row, metric), heads)


def logged_metric(row: Mapping[str, Any], metric: str) -> float:
    """The metric in a row of the history; raises `InputError` if the run does not log it."""
    value = row.get(metric)
    if value is None or value == "":
        metrics = [key for key in row if "/" in key]
        raise InputError(f"the run has no {metric}; it has {', '.join(metrics)}")
    return float(value)
