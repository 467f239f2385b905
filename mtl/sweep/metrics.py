"""Which figures a run logs, by their names in its history and in W&B."""

from __future__ import annotations

from mtl.config.schema import TrainConfig
from mtl.errors import InputError, did_you_mean

_OF_GATES = ("open", "expected_l0", "penalty")


def known_metrics(config: TrainConfig) -> list[str]:
    """The figures that stand in every row of such a run's history."""
    tasks = config.chosen()
    names = ["dev/mean"]
    for name, task in tasks.items():
        names += [f"dev/{name}/{figure}" for figure in task.figures if not figure.endswith("/")]
    names += [f"loss/{name}" for name in tasks]
    if config.pruning != "none":
        masks = list(tasks) if config.gates.scope == "per_task" else ["shared"]
        names += [f"gates/{mask}/{figure}" for mask in masks for figure in _OF_GATES]
    return names


def check_metric(name: str, config: TrainConfig) -> None:
    """Raise `InputError` if such a run does not log this figure."""
    known = known_metrics(config)
    by_label = [
        f"dev/{name}/{figure}"
        for name, task in config.chosen().items()
        for figure in task.figures
        if figure.endswith("/")
    ]
    if name in known or name.startswith(tuple(by_label)):
        return
    if name.startswith("test/"):
        raise InputError(
            f"metric {name}: trials are chosen by their scores on dev; test is for the chosen one"
        )
    if name.startswith("gates/") and config.pruning == "none":
        raise InputError(f"metric {name}: runs with pruning=none have no masks; set pruning=dynamic")
    masks = f", pruning={config.pruning}" + (
        f", gates.scope={config.gates.scope}" if config.pruning != "none" else ""
    )
    runs = f"runs with tasks={','.join(config.chosen())}{masks}"
    raise InputError(f"metric: {runs} do not log '{name}'{did_you_mean(name, known)}")
