"""A sweep file in W&B's format; `check.py` checks it against the configuration of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mtl.errors import InputError
from mtl.sweep.early_stopping import Stopping, stopping_from
from mtl.sweep.parameter import Parameter, parameters_from
from mtl.sweep.yaml_file import count, known, read_mapping, text

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
ARGUMENTS = "${args}"
_FORM = f"command must be [mtl, train, FILE.yaml, --key=value, '{ARGUMENTS}'], all but the ends optional"


@dataclass(frozen=True)
class Metric:
    """The figure that a sweep optimises, by its name in a run's history."""

    name: str
    goal: Goal
    target: float | None = None
    """A value that is good enough: no trial is started after it."""

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
    """The file's keys and values, as they are sent to W&B."""

    def points(self) -> int | None:
        """How many trials a grid has; `None` if trials are drawn, or laid out by W&B's server."""
        points = [parameter.points() for parameter in self.parameters]
        if self.method != "grid" or None in points:
            return None
        return math.prod(len(drawn) for drawn, _ in filter(None, points))

    def check_local(self) -> None:
        """Raise `InputError` if only W&B's server can draw from one of the distributions."""
        for parameter in self.parameters:
            if parameter.server_only:
                raise InputError(
                    f"parameters.{parameter.key}: distribution {parameter.kind} runs with W&B's server only; "
                    "with --local use value, values, or min and max with uniform, int_uniform or "
                    "log_uniform_values"
                )

    def only_on_the_server(self) -> list[str]:
        """The keys that have no effect without W&B's server."""
        names = []
        for dotted in _ON_THE_SERVER:
            value: Any = self.given
            for key in dotted.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None:
                names.append(dotted)
        return names


def read_sweep(path: Path, name: str | None = None, words: Sequence[str] = ()) -> Sweep:
    """The sweep of a file; `words` are added to what all trials have in common."""
    given = read_mapping(path)
    try:
        given["name"] = name or text(given, "name") or path.stem
        return sweep_from(given, words)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def sweep_from(given: Mapping[str, Any], words: Sequence[str] = ()) -> Sweep:
    """The sweep that a file's keys describe; raises `InputError` with the nearest name for unknown ones."""
    known(given, KEYS)
    method: Any = given.get("method")
    if method not in get_args(Method):
        raise InputError(f"method '{method}' is none: choose from {', '.join(get_args(Method))}")
    parameters = tuple(parameters_from(given.get("parameters")))
    _check_keys([parameter.key for parameter in parameters])
    for parameter in parameters:
        if method == "grid" and parameter.points() is None and not parameter.server_only:
            raise InputError(
                f"a grid needs values, but {parameter.key} is drawn from a range: list its values"
            )
    metric = _metric(given.get("metric"), method)
    name = re.sub(r"[^\w.+-]+", "-", str(given["name"])).strip("-.")
    if not name:
        raise InputError(f"name '{given['name']}' has no letter: give another")
    base = (*_base_words(given), *words)
    _check_unset(base, [parameter.key for parameter in parameters])
    stopping = stopping_from(given.get("early_terminate"))
    if stopping is not None and given.get("metric") is None:
        raise InputError(
            f"early_terminate compares by the metric: give metric: {{name: {DEFAULT_METRIC}, goal: maximize}}"
        )
    for key in ("description", "apiVersion", "kind"):
        text(given, key)
    without_program = {key: value for key, value in given.items() if key != "program"}
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
        given={**without_program, "command": ["mtl", "train", *base, ARGUMENTS]},
    )


def _check_keys(keys: Sequence[str]) -> None:
    for position, key in enumerate(keys):
        if key in keys[:position]:
            raise InputError(f"parameter {key} is given twice, nested and dotted")
        inside = next((other for other in keys if other.startswith(f"{key}.")), None)
        if inside is not None:
            raise InputError(f"parameters: {inside} is a part of {key}, which is given, too: leave one out")


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
        fault = "is missing (W&B would minimize)" if goal is None else f"'{goal}' is none"
        raise InputError(f"metric.goal {fault}: choose from {', '.join(get_args(Goal))}")
    target = given.get("target")
    number = isinstance(target, int | float) and not isinstance(target, bool)
    if target is not None and not (number and math.isfinite(target)):
        raise InputError(f"metric.target: '{target}' is no number")
    return Metric(given["name"], goal, None if target is None else float(target))


def _base_words(given: Mapping[str, Any]) -> list[str]:
    """The arguments of `mtl train` in `command` or `program`; raises `InputError` if no agent can run it."""
    command, program = given.get("command"), given.get("program")
    if program is not None and not isinstance(program, str):
        raise InputError(f"program: {program} is no text")
    if command is None:
        if program is not None and Path(program).suffix not in (".yaml", ".yml"):
            raise InputError(
                f"program: {program} is no configuration file; give "
                f"command: [mtl, train, FILE.yaml, '{ARGUMENTS}']"
            )
        return [] if program is None else [program]
    if not isinstance(command, list):
        raise InputError(f"{_FORM}: a list, not '{command}'")
    for word in command:
        if isinstance(word, list | Mapping) or word is None:
            raise InputError(f"command: {word} is no word: write --key=value, in quotes if need be")
    words = [program if word == "${program}" and program is not None else str(word) for word in command]
    if program is not None and program not in words:
        raise InputError(f"program: {program} has no effect, since command leaves it out: add ${{program}}")
    if words[:1] == ["${env}"]:
        words = words[1:]
    started = words[:2] == ["mtl", "train"] or words[1:4] == ["-m", "mtl", "train"]
    if not started or words[-1] != ARGUMENTS:
        raise InputError(_FORM)
    base = words[2 if words[0] == "mtl" else 4 : -1]
    for word in base:
        if "${" in word:
            raise InputError(f"command: {word} is not known here, only {ARGUMENTS} at the end")
    return base


def _check_unset(base: Sequence[str], keys: Sequence[str]) -> None:
    """Raise `InputError` if a parameter's key is also set for all trials, which would have no effect."""
    for word in base:
        if word.startswith("--") and word[2:].split("=", 1)[0] in keys:
            raise InputError(
                f"{word} in the command has no effect, since {word[2:].split('=', 1)[0]} is a parameter of "
                "the sweep: leave one of them out"
            )
