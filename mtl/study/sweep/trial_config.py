"""From a sweep's values to the configuration of a trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mtl.config.effective import plain
from mtl.config.parse import changed, configured
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.study.sweep.file import Sweep
from mtl.tasks.in_words import as_text

Mode = Literal["offline", "disabled"]


def base_of(sweep: Sweep, options: type | None = None) -> dict[str, Any]:
    """The settings that all trials share, as plain values; raises `InputError` for bad ones.

    For misspelt keys, the names of the command's own `options`, a dataclass, are suggested, too.
    """
    config = configured("mtl sweep", TrainConfig, sweep.base, options=options)
    if config.name is not None:
        raise InputError(f"name={config.name} cannot be set: a sweep names its runs itself")
    if config.trainer.devices * config.trainer.num_nodes > 1:
        raise InputError(
            "a trial is one process: leave trainer.devices and trainer.num_nodes at 1, and use --jobs=N"
        )
    values: dict[str, Any] = plain(dataclasses.asdict(config))
    return values


def trial_config(base: Mapping[str, Any], values: Mapping[str, Any]) -> TrainConfig:
    """The base with a trial's values at dotted keys, as a checked configuration.

    A group of keys keeps those that its new value lacks. Raises `InputError` for unknown keys and bad values.
    """
    described = ", ".join(f"{key}={as_text(value)}" for key, value in values.items())
    return changed(TrainConfig, base, values, f"parameters: {described}" if described else "base")


def config_of_trial(
    base: Mapping[str, Any], values: Mapping[str, Any], sweep: Sweep, number: int, runs: Path, mode: Mode
) -> TrainConfig:
    """The configuration with which a trial is trained; name, folder and W&B's settings are the sweep's."""
    config = trial_config(base, values)
    wandb = dataclasses.replace(
        config.wandb,
        mode=mode,
        group=sweep.name,
        job_type="sweep",
        tags=(*config.wandb.tags, sweep.name, sweep.file.method),
        project=sweep.file.project or config.wandb.project,
        entity=sweep.file.entity or config.wandb.entity,
    )
    return dataclasses.replace(config, name=trial_name(number), runs=str(runs), overwrite=False, wandb=wandb)


def trial_name(number: int) -> str:
    """The name of a trial, and of its run, by its number, counted from 0."""
    return f"trial-{number:04}"
