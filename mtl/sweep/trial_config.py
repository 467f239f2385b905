"""From a sweep's values to the configuration of a trial."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mtl.config.effective import plain
from mtl.config.keys import known_keys_of
from mtl.config.parse import configuration_from, configured
from mtl.config.schema import TASK_NAMES, TrainConfig
from mtl.errors import InputError, did_you_mean
from mtl.sweep.file import Sweep

Mode = Literal["offline", "disabled"]
_WEIGHTS = "balancer.weights"
_MAPPINGS = (_WEIGHTS, "gates.target_open", "gates.penalty")
"""Keys whose value may be a mapping, which a parameter replaces as a whole."""


def base_of(sweep: Sweep, options: type | None = None) -> dict[str, Any]:
    """The settings that all trials share, as plain values; raises `InputError` for bad ones.

    `options` is the dataclass of the command's own options, whose names are suggested for misspelt keys, too.
    """
    config = configured("mtl sweep", TrainConfig, sweep.base, options=options)
    if config.name is not None:
        raise InputError(f"name={config.name} cannot be set for a sweep, which names its runs itself")
    if config.trainer.devices * config.trainer.num_nodes > 1:
        raise InputError(
            "a trial of a sweep is one process: leave trainer.devices and num_nodes at 1, raise --jobs"
        )
    values: dict[str, Any] = plain(dataclasses.asdict(config))
    return values


def trial_config(base: Mapping[str, Any], values: Mapping[str, Any]) -> TrainConfig:
    """The base with a trial's values at dotted keys, checked; name, folder and W&B's settings are the base's.

    A value that is a mapping changes only the keys that it names, except that the mappings of `_MAPPINGS` are
    replaced. Raises `InputError` for unknown keys and bad values.
    """
    settings = copy.deepcopy(dict(base))
    for key, value in values.items():
        _put(settings, key, plain(value))
    described = ", ".join(f"{key}={value}" for key, value in values.items())
    return configuration_from(TrainConfig, settings, f"parameters: {described}" if described else "base")


def config_of_trial(
    base: Mapping[str, Any], values: Mapping[str, Any], sweep: Sweep, number: int, runs: Path, mode: Mode
) -> TrainConfig:
    """The configuration of a trial as it is trained."""
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
    """The name of the trial of this number, counted from 0, and of its run."""
    return f"trial-{number:04}"


def check_key(key: str) -> None:
    """Raise `InputError`, with the nearest key, for one that a configuration does not have."""
    # The weights are the only mapping whose type does not list its keys.
    known = [*known_keys_of(TrainConfig), *(f"{_WEIGHTS}.{task}" for task in TASK_NAMES)]
    if key not in known:
        raise InputError(f"parameters: unknown key '{key}'{did_you_mean(key, known)}")


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a mapping changes only the keys that it names, but one of `_MAPPINGS` is replaced."""
    check_key(key)
    *path, last = key.split(".")
    inner = settings
    for part in path:
        if not isinstance(inner[part], dict) and ".".join(path) in _MAPPINGS:
            inner[part] = {}
        inner = inner[part]
        if not isinstance(inner, dict):
            raise InputError(f"parameters: {key} cannot be set, since {'.'.join(path)} is {inner}")
    if key in _MAPPINGS and isinstance(value, Mapping):
        for name in value:
            check_key(f"{key}.{name}")
    elif isinstance(value, Mapping) and isinstance(inner.get(last), dict):
        for name, item in value.items():
            _put(settings, f"{key}.{name}", item)
        return
    inner[last] = value
