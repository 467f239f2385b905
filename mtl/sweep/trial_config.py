"""From a sweep's values to the configuration of a trial, and checks before the first one."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mtl.config.effective import plain
from mtl.config.keys import hint_of
from mtl.config.parse import changed, configured, full_key, out_of_range
from mtl.config.schema import TrainConfig
from mtl.errors import InputError, did_you_mean
from mtl.sweep.file import Sweep
from mtl.tasks.in_words import as_text, counted
from mtl.training.check import check_settings

if TYPE_CHECKING:
    from mtl.models.inputs import InputCache


Mode = Literal["offline", "disabled"]


def base_of(sweep: Sweep, options: Collection[str] = ()) -> dict[str, Any]:
    """The settings that all trials share, as plain values; raises `InputError` for bad ones.

    For misspelt keys, the names of the command's own `options` are suggested, too.
    """
    # The command of a sweep file is `mtl train`, so files have the names of its configurations.
    config = configured("mtl train", TrainConfig, sweep.base, options)
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


_OF_THE_SWEEP = ("name", "runs", "overwrite", "wandb")
"""Keys that no parameter may set."""
_COMBINATIONS = 1000
_SHAPING = ("tasks", "pruning", "gates.scope")
"""Keys that determine which metrics a run logs."""


def check_sweep(sweep: Sweep, base: Mapping[str, Any], inputs: InputCache | None = None) -> None:
    """Raise `InputError` for settings with which trials would fail; with `inputs`, also for such inputs."""
    for parameter in sweep.parameters:
        if parameter.key.split(".")[0] in _OF_THE_SWEEP:
            raise InputError(f"parameters: {parameter.key} is set by the sweep itself; leave it out")
        hint_of(TrainConfig, full_key(TrainConfig, parameter.key))  # refuses an unknown key
    configs = example_configs(sweep, base)
    for line in (line for config in configs for line in out_of_range(config)):
        raise InputError(f"parameters: {line}")
    _check_combinations(sweep, base)
    _check_stopping(sweep, base)
    if base.get("wandb", {}).get("id") is not None:
        raise InputError("wandb.id is the id of a single W&B run, and a sweep has several: leave it out")
    shaping = {each.key: each.examples for each in sweep.parameters if each.key in _SHAPING}
    for values in _product(shaping):  # none, if only the server knows the values
        config = trial_config(base, values)
        check_settings(config)
        check_metric(sweep.metric.name, config)
    if inputs is not None:
        from mtl.training.check import check_inputs

        check_inputs(configs, inputs)


def _check_combinations(sweep: Sweep, base: Mapping[str, Any]) -> None:
    """Raise `InputError` if none of the first thousand combinations of values can be trained."""
    refused = None
    for values in itertools.islice(_product(_examples(sweep)), _COMBINATIONS):
        try:
            check_settings(trial_config(base, values))
        except InputError as error:
            refused = refused or error
        else:
            return
    if refused is not None:
        raise InputError(f"parameters: no trial can be trained: {refused}")


def _check_stopping(sweep: Sweep, base: Mapping[str, Any]) -> None:
    """Raise `InputError` if trials end before their first comparison."""
    stopping, keys = sweep.file.early_terminate, {parameter.key for parameter in sweep.parameters}
    if stopping is None or {"max_epochs", "evaluate_every"} & keys:
        return
    evaluations = math.ceil(base["max_epochs"] / base["evaluate_every"])
    if stopping.first >= evaluations:
        raise InputError(
            "early_terminate has no effect: its first comparison comes after "
            f"{counted(stopping.first, 'evaluation')}, and a trial has {evaluations}; lower min_iter, or "
            "raise max_epochs"
        )


def _examples(sweep: Sweep) -> dict[str, tuple[Any, ...]]:
    return {parameter.key: parameter.examples for parameter in sweep.parameters if parameter.examples}


def _product(examples: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """All combinations of values by key."""
    for values in itertools.product(*examples.values()):
        yield dict(zip(examples, values, strict=True))


def example_configs(sweep: Sweep, base: Mapping[str, Any]) -> list[TrainConfig]:
    """Configurations of trials that contain each example of a key with the first ones of the other keys."""
    examples = _examples(sweep)
    first = {key: values[0] for key, values in examples.items()}
    others = ({**first, key: value} for key, values in examples.items() for value in values[1:])
    return [trial_config(base, values) for values in (first, *others)]


_OF_GATES = ("open", "expected_l0", "penalty")
"""Metrics of each mask in a run's history; fixed masks have only the first."""


def known_metrics(config: TrainConfig) -> list[str]:
    """The metrics in every row of such a run's history; a slash at the end stands for any label."""
    tasks = config.chosen()
    names = ["dev/mean"]
    names += [f"dev/{name}/{metric}" for name, task in tasks.items() for metric in task.scores]
    names += [f"loss/{name}" for name in tasks]
    if config.evaluate_train:
        names += [f"train/{name}/{metric}" for name, task in tasks.items() for metric in task.scores]
    if config.pruning != "none":
        masks = list(tasks) if config.gates.scope == "per_task" else ["shared"]
        metrics = _OF_GATES[:1] if config.pruning == "fixed" else _OF_GATES
        names += [f"gates/{mask}/{metric}" for mask in masks for metric in metrics]
    return names


def check_metric(name: str, config: TrainConfig) -> None:
    """Raise `InputError` if such a run does not log this metric."""
    known = known_metrics(config)
    if name in known or name.startswith(tuple(metric for metric in known if metric.endswith("/"))):
        return
    if name.startswith("test/"):
        raise InputError(
            f"metric {name}: trials are chosen by their scores on dev; test is for the chosen one"
        )
    if name.startswith("gates/") and config.pruning == "none":
        raise InputError(f"metric {name}: runs with pruning=none have no masks; set pruning=dynamic")
    scope = "" if config.pruning == "none" else f", gates.scope={config.gates.scope}"
    runs = f"runs with tasks={','.join(config.chosen())}, pruning={config.pruning}{scope}"
    raise InputError(f"metric: {runs} do not log '{name}'{did_you_mean(name, known)}")
