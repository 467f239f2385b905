"""A sweep file in W&B's format, read and checked by itself; what it says on runs is checked elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from mtl.errors import InputError
from mtl.study.grid import nearest
from mtl.sweep.distributions import parameters_from
from mtl.sweep.parameter import Parameter

Method = Literal["grid", "random", "bayes"]
Goal = Literal["minimize", "maximize"]
KEYS = (
    "method", "metric", "parameters", "early_terminate", "run_cap", "command", "program", "project", "entity",
    "name", "description", "apiVersion", "kind",
)  # fmt: skip
ARGUMENTS = "${args}"
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
class Stopping:
    """Trials are compared after `first` evaluations, `first * eta`, and so on; one in `eta` goes on.

    So W&B's hyperband works too: a single bracket of it, which is asynchronous successive halving.
    """

    first: int
    eta: int


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
        count = 1
        for parameter in self.parameters:
            count *= len(parameter.points() or ())
        return count


def read_sweep(path: Path, name: str | None = None, words: Sequence[str] = ()) -> Sweep:
    """The sweep of a file; `words` are added to what all trials have in common."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a sweep file such as configs/sweep/penalty.yaml")
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(given, Mapping):
        raise InputError(f"{path}: a sweep file needs method, metric and parameters")
    try:
        return sweep_from({**given, "name": name or given.get("name") or path.stem}, words)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def sweep_from(given: Mapping[str, Any], words: Sequence[str] = ()) -> Sweep:
    """The sweep that such words describe; raises `InputError` with the nearest name for unknown ones."""
    for key in given:
        if key not in KEYS:
            raise InputError(f"unknown '{key}'{nearest(str(key), KEYS)}")
    method: Any = given.get("method")
    if method not in get_args(Method):
        raise InputError(f"method '{method}' is none: choose from {', '.join(get_args(Method))}")
    parameters = tuple(parameters_from(given.get("parameters")))
    keys = [parameter.key for parameter in parameters]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"parameter {key} is given twice, nested and dotted")
    if method == "grid":
        endless = [parameter.key for parameter in parameters if parameter.points() is None]
        if endless:
            raise InputError(f"a grid needs values, but {endless[0]} is drawn from a range: list its values")
    metric = _metric(given.get("metric"), method)
    name = re.sub(r"[^\w.+-]+", "-", str(given["name"])).strip("-.")
    if not name:
        raise InputError(f"name '{given['name']}' has no letter: give another")
    base = (*_base(given), *words)
    return Sweep(
        name=name,
        method=method,
        metric=metric,
        parameters=parameters,
        stopping=_stopping(given.get("early_terminate")),
        run_cap=_count(given, "run_cap"),
        base=base,
        project=given.get("project"),
        entity=given.get("entity"),
        given={**given, "command": ["mtl", "train", *base, ARGUMENTS]},
    )


def _metric(given: Any, method: Method) -> Metric:
    if given is None and method != "bayes":
        return Metric(DEFAULT_METRIC, "maximize")
    if not isinstance(given, Mapping) or "name" not in given:
        raise InputError(f"metric is missing: give metric: {{name: {DEFAULT_METRIC}, goal: maximize}}")
    _known(given, ("name", "goal", "target", "impute", "impute_while_running"), "metric")
    goal: Any = given.get("goal")
    if goal not in get_args(Goal):
        said = "is missing (W&B would minimize)" if goal is None else f"'{goal}' is none"
        raise InputError(f"metric.goal {said}: choose from {', '.join(get_args(Goal))}")
    target = given.get("target")
    if target is not None and (isinstance(target, bool) or not isinstance(target, int | float)):
        raise InputError(f"metric.target: '{target}' is no number")
    return Metric(str(given["name"]), goal, None if target is None else float(target))


def _stopping(given: Any) -> Stopping | None:
    if given is None:
        return None
    if not isinstance(given, Mapping) or given.get("type") != "hyperband":
        raise InputError(
            "early_terminate: type must be hyperband, for instance {type: hyperband, min_iter: 3}"
        )
    _known(given, ("type", "min_iter", "max_iter", "s", "eta", "strict"), "early_terminate")
    eta = _count(given, "eta", "early_terminate.") or 3
    if eta < 2:
        raise InputError(f"early_terminate.eta={eta}: one trial in eta goes on; give 2 or more")
    first, last, times = (_count(given, key, "early_terminate.") for key in ("min_iter", "max_iter", "s"))
    if last is not None and times is not None:  # which W&B, too, takes if min_iter is given besides
        # W&B leaves out comparisons that would come before the first evaluation.
        while last < eta**times:
            times -= 1
        if times == 0:
            raise InputError(f"early_terminate: max_iter={last} leaves no comparison; raise it, or lower eta")
        first = last // eta**times
    if first is None:
        raise InputError(
            "early_terminate: give min_iter, or max_iter and s, the number of comparisons before it"
        )
    return Stopping(first, eta)


def _base(given: Mapping[str, Any]) -> list[str]:
    """The words between `mtl train` and the sweep's own arguments."""
    command, program = given.get("command"), given.get("program")
    if command is None:
        if program is not None and Path(str(program)).suffix not in (".yaml", ".yml"):
            raise InputError(
                f"program: {program} is no configuration file; give "
                f"command: [mtl, train, FILE.yaml, '{ARGUMENTS}']"
            )
        return [] if program is None else [str(program)]
    words = [str(word) for word in command] if isinstance(command, list) else []
    words = [str(program) if word == "${program}" and program is not None else word for word in words]
    if words[:1] == ["${env}"]:
        words = words[1:]
    started = words[:2] == ["mtl", "train"] or words[1:4] == ["-m", "mtl", "train"]
    if not started or words[-1] != ARGUMENTS:
        raise InputError(
            f"command must be [mtl, train, FILE.yaml, --key=value, '{ARGUMENTS}'], all but the ends optional"
        )
    base = words[2 if words[0] == "mtl" else 4 : -1]
    for word in base:
        if "${" in word:
            raise InputError(f"command: {word} is not known here, only {ARGUMENTS} at the end")
    return base


def _count(given: Mapping[str, Any], key: str, place: str = "") -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{place}{key}: '{value}' is no whole number above 0")
    return value


def _known(given: Mapping[str, Any], names: Sequence[str], place: str) -> None:
    for name in given:
        if name not in names:
            raise InputError(f"{place}: unknown '{name}'{nearest(str(name), names)}")
