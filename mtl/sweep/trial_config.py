"""From a sweep's values to the configuration of a trial, and what is wrong with them before the first."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from mtl.config.effective import plain
from mtl.config.parse import configuration_from, configured, known_keys_of
from mtl.config.schema import TASK_NAMES, TrainConfig
from mtl.corpora.load import require_layers
from mtl.errors import InputError, did_you_mean
from mtl.models import pretrained
from mtl.models.inputs import InputCache
from mtl.sweep.file import Sweep
from mtl.sweep.metrics import check_metric

Mode = Literal["offline", "disabled"]
_OF_THE_SWEEP = ("name", "runs", "overwrite", "wandb")
"""Keys that no parameter may set."""
_WEIGHTS = "balancer.weights"
_SHAPING = ("tasks", "pruning", "gates.scope")
"""Keys on which it depends what a run logs."""
_READ = ("encoder", "corpus", "tasks", *TASK_NAMES)
"""Keys on which it depends what a run reads."""


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
    whole = copy.deepcopy(dict(base))
    for key, value in values.items():
        _put(whole, key, plain(value))
    return whole


def trial_settings(
    base: Mapping[str, Any], values: Mapping[str, Any], sweep: Sweep, number: int, runs: Path, mode: Mode
) -> dict[str, Any]:
    """The whole configuration of a trial."""
    whole = with_values(base, values)
    wandb = {
        "mode": mode,
        "group": sweep.name,
        "job_type": "sweep",
        "tags": [*whole["wandb"]["tags"], sweep.name, sweep.method],
    }
    if sweep.project is not None:
        wandb["project"] = sweep.project
    if sweep.entity is not None:
        wandb["entity"] = sweep.entity
    return {
        **whole,
        "name": trial_name(number),
        "runs": str(runs),
        "overwrite": False,
        "wandb": {**whole["wandb"], **wandb},
    }


def trial_name(number: int) -> str:
    """The name of a trial and its run, from 0."""
    return f"trial-{number:04}"


def check(sweep: Sweep, base: Mapping[str, Any], material: InputCache | None) -> None:
    """Raise `InputError` for whatever would make trials fail that can be told before the first.

    With `material`, encoders and corpora are looked at, too.
    """
    for parameter in sweep.parameters:
        if parameter.key.split(".")[0] in _OF_THE_SWEEP:
            raise InputError(f"parameters: {parameter.key} is the sweep's own to set; leave it out")
    for values in _side_by_side(sweep):
        _typed(base, values)
    _check_stopping(sweep, base)
    seen: set[str] = set()
    for values in _shapes(sweep):
        check_metric(sweep.metric.name, _typed(base, values))
    for values in _one_by_one(sweep) if material is not None else ():
        assert material is not None
        _check_material(_typed(base, values), material, seen)


def _check_stopping(sweep: Sweep, base: Mapping[str, Any]) -> None:
    """Raise `InputError` if no trial lasts long enough to be compared; the last evaluation saves nothing."""
    ends = {"max_epochs": base["max_epochs"], "evaluate_every": base["evaluate_every"]}
    if sweep.stopping is None or any(each.key in ends for each in sweep.parameters):
        return
    evaluations = math.ceil(ends["max_epochs"] / ends["evaluate_every"])
    if sweep.stopping.first >= evaluations:
        raise InputError(
            f"early_terminate has no effect: its first comparison comes after {sweep.stopping.first} "
            f"evaluations, and a trial has {evaluations}; lower min_iter, or raise max_epochs"
        )


def _check_material(config: TrainConfig, material: InputCache, seen: set[str]) -> None:
    if config.encoder.name not in seen:
        seen.add(config.encoder.name)
        pretrained.check_encoder(config.encoder.name)
    for task, settings in config.chosen().items():
        key = json.dumps(
            [task, plain(dataclasses.asdict(config.corpus)), plain(dataclasses.asdict(settings))]
        )
        if key in seen:
            continue
        seen.add(key)
        for split in ("train", "dev"):
            require_layers(material.split(config.corpus, (task,), split), {task: settings}, split)


def _shapes(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """All combinations of values on which it depends what a run logs."""
    shaping = [each for each in sweep.parameters if each.key in _SHAPING]
    for values in itertools.product(*(each.examples() for each in shaping)):
        yield {each.key: value for each, value in zip(shaping, values, strict=True)}


def _side_by_side(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Few combinations in which every value stands once; types do not depend on each other."""
    for place in range(max(len(each.examples()) for each in sweep.parameters)):
        yield {each.key: each.examples()[place] for each in sweep.parameters if place < len(each.examples())}


def _one_by_one(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Trials in which every value that changes what is read stands once, beside the others' first."""
    reading = [each for each in sweep.parameters if each.key.split(".")[0] in _READ]
    first = {each.key: each.examples()[0] for each in reading}
    yield first
    for parameter in reading:
        for value in parameter.examples()[1:]:
            yield {**first, parameter.key: value}


def _typed(base: Mapping[str, Any], values: Mapping[str, Any]) -> TrainConfig:
    said = ", ".join(f"{key}={value}" for key, value in values.items())
    return configuration_from(
        TrainConfig, with_values(base, values), f"parameters: {said}" if said else "base"
    )


def _keys() -> list[str]:
    return [key for key in known_keys_of(TrainConfig) if not key.endswith(".help")]


def _may_be_null(key: str) -> bool:
    """Whether a key's type has `None`; the parser takes it for "not given", and lets it pass."""
    kind: Any = TrainConfig
    for part in key.split("."):
        kind = get_type_hints(kind)[part]
    return type(None) in get_args(kind)


def _put(place: dict[str, Any], key: str, value: Any) -> None:
    keys = _keys()
    # The one mapping whose keys are not fields.
    weights = [f"{_WEIGHTS}.{task}" for task in TASK_NAMES]
    named = [f"{_WEIGHTS}.{task}" for task in value] if key == _WEIGHTS and isinstance(value, Mapping) else []
    for each in (key, *named):
        if each not in keys and each not in weights:
            raise InputError(f"parameters: unknown key '{each}'{did_you_mean(each, [*keys, *weights])}")
    if value is None and key in keys and not _may_be_null(key):
        raise InputError(f"parameters: {key} cannot be null: give a value")
    path = key.split(".")
    inner = place
    for part in path[:-1]:
        inner = inner[part]
        if not isinstance(inner, dict):
            raise InputError(f"parameters: {key} cannot be set, since {'.'.join(path[:-1])} is {inner}")
    has_keys = any(known.startswith(f"{key}.") for known in keys)
    if has_keys and not isinstance(value, Mapping | str):
        raise InputError(f"parameters: {key} holds other keys, and cannot be '{value}'; set {key}.KEY")
    if has_keys and isinstance(value, Mapping) and isinstance(inner.get(path[-1]), dict):
        for name, each in value.items():
            _put(place, f"{key}.{name}", each)
    else:
        inner[path[-1]] = value
