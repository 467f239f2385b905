"""From a sweep's values to the configuration of a trial."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from mtl.config.effective import plain
from mtl.config.parse import configuration_from, configured, known_keys_of
from mtl.config.schema import TASK_NAMES, TrainConfig
from mtl.errors import InputError, did_you_mean
from mtl.sweep.file import Sweep

Mode = Literal["offline", "disabled"]
_WEIGHTS = "balancer.weights"


def base_of(sweep: Sweep, options: type | None = None) -> dict[str, Any]:
    """What all trials have in common, as plain values; the command's `options` are no part of it."""
    config = configured("mtl sweep", TrainConfig, sweep.base, options=options)
    if config.name is not None:
        raise InputError(f"name={config.name} cannot be set for a sweep, which names its runs itself")
    if config.trainer.devices * config.trainer.num_nodes > 1:
        raise InputError(
            "a trial of a sweep is one process: leave trainer.devices and num_nodes at 1, raise --jobs"
        )
    values: dict[str, Any] = plain(dataclasses.asdict(config))
    return values


def with_values(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The base with other values at dotted keys; a mapping changes only those of its keys that it has."""
    settings = copy.deepcopy(dict(base))
    for key, value in values.items():
        _put(settings, key, plain(value))
    return settings


def trial_settings(
    base: Mapping[str, Any], values: Mapping[str, Any], sweep: Sweep, number: int, runs: Path, mode: Mode
) -> dict[str, Any]:
    """The whole configuration of a trial."""
    settings = with_values(base, values)
    wandb = {
        "mode": mode,
        "group": sweep.name,
        "job_type": "sweep",
        "tags": [*settings["wandb"]["tags"], sweep.name, sweep.method],
    }
    if sweep.project is not None:
        wandb["project"] = sweep.project
    if sweep.entity is not None:
        wandb["entity"] = sweep.entity
    return {
        **settings,
        "name": trial_name(number),
        "runs": str(runs),
        "overwrite": False,
        "wandb": {**settings["wandb"], **wandb},
    }


def trial_name(number: int) -> str:
    """The name of a trial and its run, from 0."""
    return f"trial-{number:04}"


def trial_config(base: Mapping[str, Any], values: Mapping[str, Any]) -> TrainConfig:
    """The configuration with a trial's values, checked; name, folder and W&B's settings are the base's."""
    described = ", ".join(f"{key}={value}" for key, value in values.items())
    return configuration_from(
        TrainConfig, with_values(base, values), f"parameters: {described}" if described else "base"
    )


def check_key(key: str) -> None:
    """Raise `InputError`, with the nearest key, for one that a configuration does not have."""
    # The weights are the one mapping whose keys are not fields.
    known = [*_keys(), *(f"{_WEIGHTS}.{task}" for task in TASK_NAMES)]
    if key not in known:
        raise InputError(f"parameters: unknown key '{key}'{did_you_mean(key, known)}")


def _keys() -> list[str]:
    return [key for key in known_keys_of(TrainConfig) if not key.endswith(".help")]


def _may_be_null(key: str) -> bool:
    """Whether a key's type has `None`; the parser takes it for "not given", and lets it pass."""
    kind: Any = TrainConfig
    for part in key.split("."):
        kind = get_type_hints(kind)[part]
    return type(None) in get_args(kind)


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a mapping changes only its own keys."""
    check_key(key)
    if key == _WEIGHTS and isinstance(value, Mapping):
        for task in value:
            check_key(f"{_WEIGHTS}.{task}")
    keys = _keys()
    if value is None and key in keys and not _may_be_null(key):
        raise InputError(f"parameters: {key} cannot be null: give a value")
    *path, last = key.split(".")
    inner = settings
    for part in path:
        inner = inner[part]
        if not isinstance(inner, dict):
            raise InputError(f"parameters: {key} cannot be set, since {'.'.join(path)} is {inner}")
    has_keys = any(known.startswith(f"{key}.") for known in keys)
    if has_keys and not isinstance(value, Mapping | str):
        raise InputError(f"parameters: {key} holds other keys, and cannot be '{value}'; set {key}.KEY")
    if has_keys and isinstance(value, Mapping) and isinstance(inner.get(last), dict):
        for name, item in value.items():
            _put(settings, f"{key}.{name}", item)
    else:
        inner[last] = value
