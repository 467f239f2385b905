"""A sweep file in W&B's format, read and checked by itself; what it says on runs is checked elsewhere."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mtl.errors import InputError
from mtl.sweep.command import ARGUMENTS, base_words, check_unset
from mtl.sweep.distributions import parameters_from
from mtl.sweep.early_stopping import Stopping, stopping_from
from mtl.sweep.parameter import Listed, Parameter
from mtl.sweep.reading import read_mapping
from mtl.sweep.words import count, known, text

Method = Literal["grid", "random", "bayes"]
Goal = Literal["minimize", "maximize"]
KEYS = (
    "method", "metric", "parameters", "early_terminate", "run_cap", "command", "program", "project", "entity",
    "name", "description", "apiVersion", "kind",
)  # fmt: skip
_ON_THE_SERVER = (
    "description", "apiVersion", "kind", "metric.impute", "metric.impute_while_running",
    "early_terminate.strict",
)  # fmt: skip
_IMPUTE = ("latest", "best", "worst")
DEFAULT_METRIC = "dev/mean"


@dataclass(frozen=True)
class Metric:
    """What a sweep is after, by its name in a run's history."""

    name: str
    goal: Goal
    target: float | None = None
    """A value that is good enough: no trial is begun after it."""

    def better(self, first: float, second: float) -> bool:
        """Whether the first value is better than the second."""
        return first > second if self.goal == "maximize" else first < second

    def reached(self, value: float) -> bool:
        """Whether a value is good enough."""
        return self.target is not None and not self.better(self.target, value)


@dataclass(frozen=True)
class Sweep:
    """What a sweep file says."""

    name: str
    method: Method
    metric: Metric
    parameters: tuple[Parameter, ...]
    stopping: Stopping | None
    run_cap: int | None
    base: tuple[str, ...]
    """Arguments of `mtl train` that all trials have in common."""
    project: str | None
    entity: str | None
    given: dict[str, Any]
    """The file's own words, as W&B is to have them."""

    def points(self) -> int | None:
        """How many trials a grid has; `None` if trials are drawn."""
        if self.method != "grid":
            return None
        return math.prod(len(parameter.points() or ()) for parameter in self.parameters)

    def only_on_the_server(self) -> list[str]:
        """What the file says that has no effect without W&B's server."""
        found = []
        for dotted in _ON_THE_SERVER:
            value: Any = self.given
            for key in dotted.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None:
                found.append(dotted)
        return found


def read_sweep(path: Path, name: str | None = None, words: Sequence[str] = ()) -> Sweep:
    """The sweep of a file; `words` are added to what all trials have in common."""
    given = read_mapping(path)
    try:
        own = text(given, "name")
        return sweep_from({**given, "name": name or own or path.stem}, words)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def sweep_from(given: Mapping[str, Any], words: Sequence[str] = ()) -> Sweep:
    """The sweep that such words describe; raises `InputError` with the nearest name for unknown ones."""
    known(given, KEYS)
    method: Any = given.get("method")
    if method not in get_args(Method):
        raise InputError(f"method '{method}' is none: choose from {', '.join(get_args(Method))}")
    parameters = tuple(parameters_from(given.get("parameters")))
    _check_keys([parameter.key for parameter in parameters])
    if method == "grid":
        parameters = tuple(_on_grid(parameter) for parameter in parameters)
    metric = _metric(given.get("metric"), method)
    name = re.sub(r"[^\w.+-]+", "-", str(given["name"])).strip("-.")
    if not name:
        raise InputError(f"name '{given['name']}' has no letter: give another")
    base = (*base_words(given), *words)
    check_unset(base, [parameter.key for parameter in parameters])
    stopping = stopping_from(given.get("early_terminate"))
    if stopping is not None and given.get("metric") is None:
        raise InputError(
            f"early_terminate compares by the metric: give metric: {{name: {DEFAULT_METRIC}, goal: maximize}}"
        )
    for key in ("description", "apiVersion", "kind"):
        text(given, key)
    kept = {key: value for key, value in given.items() if key != "program"}
    return Sweep(
        name=name,
        method=method,
        metric=metric,
        parameters=parameters,
        stopping=stopping,
        run_cap=count(given, "run_cap"),
        base=base,
        project=text(given, "project"),
        entity=text(given, "entity"),
        given={**kept, "command": ["mtl", "train", *base, ARGUMENTS]},
    )


def _check_keys(keys: Sequence[str]) -> None:
    for place, key in enumerate(keys):
        if key in keys[:place]:
            raise InputError(f"parameter {key} is given twice, nested and dotted")
        inside = next((other for other in keys if other.startswith(f"{key}.")), None)
        if inside is not None:
            raise InputError(f"parameters: {inside} is a part of {key}, which is given, too: leave one out")


def _on_grid(parameter: Parameter) -> Parameter:
    on_grid = parameter.on_grid()
    if on_grid is None:
        raise InputError(
            f"a grid needs values, but {parameter.key} is drawn "
            f"{'with probabilities' if isinstance(parameter, Listed) else 'from a range'}: list its values"
        )
    return on_grid


def _metric(given: Any, method: Method) -> Metric:
    if given is None and method != "bayes":
        return Metric(DEFAULT_METRIC, "maximize")
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise InputError(f"metric is missing: give metric: {{name: {DEFAULT_METRIC}, goal: maximize}}")
    known(given, ("name", "goal", "target", "impute", "impute_while_running"), "metric")
    if given.get("impute") not in (None, *_IMPUTE):
        raise InputError(f"metric.impute '{given['impute']}' is none: choose from {', '.join(_IMPUTE)}")
    goal: Any = given.get("goal")
    if goal not in get_args(Goal):
        said = "is missing (W&B would minimize)" if goal is None else f"'{goal}' is none"
        raise InputError(f"metric.goal {said}: choose from {', '.join(get_args(Goal))}")
    target = given.get("target")
    number = isinstance(target, int | float) and not isinstance(target, bool)
    if target is not None and not (number and math.isfinite(target)):
        raise InputError(f"metric.target: '{target}' is no number")
    return Metric(given["name"], goal, None if target is None else float(target))
