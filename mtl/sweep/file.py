"""A sweep file in W&B's format, as typed values, and the parameters that its trials vary."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mtl.config.parse import configuration_from, read_mapping
from mtl.errors import InputError, did_you_mean
from mtl.tasks.in_words import as_text, counted
from mtl.tasks.task import Range, Some

if TYPE_CHECKING:
    from optuna.trial import Trial


Scale = Literal["linear", "log", "categories"]
Fields = tuple[tuple[str, ...], tuple[str, ...]]
LOCAL: dict[str, Fields] = {
    "constant": (("value",), ()),
    "categorical": (("values",), ()),
    "int_uniform": (("min", "max"), ()),
    "uniform": (("min", "max"), ()),
    "log_uniform_values": (("min", "max"), ()),
}
"""The distributions that are drawn without W&B's server: the fields that each needs, and may have."""
SERVER_ONLY: dict[str, Fields] = {
    "categorical_w_probabilities": (("values", "probabilities"), ()),
    "log_uniform": (("min", "max"), ()),
    "inv_log_uniform": (("min", "max"), ()),
    "inv_log_uniform_values": (("min", "max"), ()),
    "normal": ((), ("mu", "sigma")),
    "log_normal": ((), ("mu", "sigma")),
    "beta": ((), ("a", "b")),
    "q_uniform": (("min", "max"), ("q",)),
    "q_log_uniform": (("min", "max"), ("q",)),
    "q_log_uniform_values": (("min", "max"), ("q",)),
    "q_normal": ((), ("mu", "sigma", "q")),
    "q_log_normal": ((), ("mu", "sigma", "q")),
    "q_beta": ((), ("a", "b", "q")),
}
"""W&B's other distributions, from which only its server draws."""
_NUMBERS = ("min", "max", "mu", "sigma", "q", "a", "b")
_FIELDS = ("value", "values", "probabilities", *_NUMBERS)


@dataclass(frozen=True)
class Parameter:
    """A dotted key of the configuration and the values that it may take."""

    key: str
    kind: str
    """W&B's name of the distribution."""
    given: Mapping[str, Any]
    """The fields that describe it."""
    examples: tuple[Any, ...]
    """All listed values, or both ends of a range as numbers of its type; empty for `SERVER_ONLY`."""

    def __str__(self) -> str:
        fields = (f"{name} {self.given[name]}" for name in _FIELDS if name in self.given)
        return f"{self.key}: {self.kind}: {', '.join(fields)}"

    @property
    def server_only(self) -> bool:
        """Whether only W&B's server draws from it."""
        return self.kind in SERVER_ONLY

    @property
    def varies(self) -> bool:
        """Whether trials differ in it."""
        return self.server_only or len(self.examples) > 1

    @property
    def scale(self) -> Scale:
        """The scale of an axis for its values."""
        if self.kind in ("constant", "categorical"):
            return "categories"
        return "log" if "log" in self.kind else "linear"

    @property
    def size(self) -> int | None:
        """The number of values; `None` for a range of floats, and for `SERVER_ONLY`."""
        if self.kind == "int_uniform":
            return int(self.examples[1] - self.examples[0] + 1)
        return len(self.examples) if self.scale == "categories" else None

    def at(self, position: int) -> Any:
        """The value at a position, counted from 0, among all values."""
        return self.examples[0] + position if self.kind == "int_uniform" else self.examples[position]

    def draw(self, trial: Trial) -> Any:
        """The value for a trial; Optuna keeps the draw, so that a resumed trial gets the same value."""
        if self.scale == "categories":
            # Optuna draws positions, since values may be lists, which it does not accept.
            return self.examples[trial.suggest_categorical(self.key, tuple(range(len(self.examples))))]
        low, high = self.examples
        if self.kind == "int_uniform":
            return trial.suggest_int(self.key, low, high)
        return trial.suggest_float(self.key, low, high, log=self.scale == "log")


def parameters_from(tree: Mapping[str, Any], prefix: str = "") -> Iterator[Parameter]:
    """All parameters, nested or with dotted names; raises `InputError` for bad descriptions."""
    if not tree or not isinstance(tree, Mapping):
        raise InputError(
            f"parameters{f': {prefix[:-1]}' if prefix else ''} is empty or not a mapping: use at least one "
            "dotted key with value, values, or min and max"
        )
    for name, given in tree.items():
        key = f"{prefix}{name}"
        if not isinstance(given, Mapping):
            raise InputError(
                f"parameters: {key}: use value, values, or min and max, for instance {{values: [1, 2]}}"
            )
        if "parameters" not in given:
            yield _parameter(key, given)
        elif len(given) > 1:
            raise InputError(f"parameters: {key}: nothing else can be given next to nested parameters")
        else:
            yield from parameters_from(given["parameters"], f"{key}.")


def _parameter(key: str, given: Mapping[str, Any]) -> Parameter:
    where = f"parameters: {key}"
    for name in given:
        if name not in ("distribution", *_FIELDS):
            raise InputError(
                f"{where}: unknown '{name}'{did_you_mean(str(name), ('distribution', *_FIELDS))}"
            )
    kind = str(given.get("distribution") or _default_kind(where, given))
    known = LOCAL | SERVER_ONLY
    if kind not in known:
        raise InputError(f"{where}: unknown distribution '{kind}'{did_you_mean(kind, known)}")
    needed, possible = known[kind]
    if not set(needed) <= given.keys() - {"distribution"} <= {*needed, *possible}:
        needs = " and ".join(needed) or "nothing"
        may = f", and may have {' and '.join(possible)}" if possible else ""
        raise InputError(f"{where}: {kind} needs {needs}{may}, and nothing else")
    _check_numbers(where, kind, {name: given[name] for name in _NUMBERS if name in given})
    if "values" in given:
        _check_values(where, given["values"])
    if "probabilities" in given:
        _check_probabilities(where, given["probabilities"], len(given["values"]))
    if kind in SERVER_ONLY:
        return Parameter(key, kind, given, ())
    if "min" not in given:
        return Parameter(key, kind, given, tuple(given.get("values") or (given["value"],)))
    number = int if kind == "int_uniform" else float
    return Parameter(key, kind, given, (number(given["min"]), number(given["max"])))


def with_distributions(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The checked parameters with the distribution of every range written out.

    W&B's own check considers some ranges, such as 0 to 1.5, ambiguous without it.
    """
    written: dict[str, Any] = {}
    for name, given in tree.items():
        if "parameters" in given:
            written[name] = {"parameters": with_distributions(given["parameters"])}
        elif "min" in given and not given.get("distribution"):
            written[name] = {**given, "distribution": _default_kind(name, given)}
        else:
            written[name] = dict(given)
    return written


def _default_kind(where: str, given: Mapping[str, Any]) -> str:
    """The distribution that follows from a parameter's fields, as in W&B."""
    if "value" in given:
        return "constant"
    if "values" in given:
        return "categorical_w_probabilities" if "probabilities" in given else "categorical"
    if "min" in given and "max" in given:
        return "int_uniform" if all(isinstance(given[end], int) for end in ("min", "max")) else "uniform"
    raise InputError(f"{where}: use value, values, min and max, or a distribution")


def _check_numbers(where: str, kind: str, numbers: Mapping[str, Any]) -> None:
    for number in numbers.values():
        _check_number(where, number)
    for name in ("sigma", "q", "a", "b"):
        if numbers.get(name, 1) <= 0:
            raise InputError(f"{where}: {name}={numbers[name]:g}: use a number above 0")
    if "min" not in numbers:
        return
    low, high = numbers["min"], numbers["max"]
    if kind == "int_uniform" and not (isinstance(low, int) and isinstance(high, int)):
        raise InputError(f"{where}: int_uniform needs whole numbers for min and max")
    if low >= high:  # W&B refuses both
        raise InputError(f"{where}: min={low:g} is {'above' if low > high else 'not below'} max={high:g}")
    if kind.endswith("log_uniform_values") and low <= 0:
        raise InputError(f"{where}: min={low:g} has no logarithm: use a number above 0")


def _check_number(where: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{where}: '{as_text(value)}' is not a number")


def _check_values(where: str, values: Any) -> None:
    if not isinstance(values, list) or not values:
        raise InputError(f"{where}: values: use a list of at least one value")
    for position, value in enumerate(values):
        if any(type(value) is type(other) and value == other for other in values[:position]):
            raise InputError(f"{where}: values: {as_text(value)} is given twice")


def _check_probabilities(where: str, shares: Any, count: int) -> None:
    if not isinstance(shares, list) or len(shares) != count:
        raise InputError(f"{where}: probabilities: use one for each of the {counted(count, 'value')}")
    for share in shares:
        _check_number(where, share)
    if min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise InputError(f"{where}: probabilities: use numbers from 0 on that sum to 1")


Method = Literal["grid", "random", "bayes"]
Impute = Literal["latest", "best", "worst"]
_ON_THE_SERVER = (
    "description", "apiVersion", "kind", "controller", "metric.impute", "metric.impute_while_running",
    "early_terminate.strict",
)  # fmt: skip
"""Dotted keys that have an effect only with W&B's server."""
_OF_LAUNCH = ("job", "image_uri", "imageuri", "scheduler", "launch", "queue")
"""Keys of W&B Launch, which does not start `mtl train`."""
ARGUMENTS = "${args}"
"""The word of `command` that W&B's agent replaces with a trial's own arguments."""


@dataclass(frozen=True)
class Metric:
    """The metric that a sweep optimises, by its name in a run's history."""

    name: str = "dev/mean"
    goal: Literal["minimize", "maximize"] = "maximize"
    target: float | None = None
    """A value that is good enough: once a finished trial reaches it, no more are started."""
    impute: Impute | None = None
    impute_while_running: Impute | None = None
    """This key and `impute` have an effect only with W&B's server."""

    def reached(self, value: float) -> bool:
        """Whether a value is good enough."""
        if self.target is None:
            return False
        return value >= self.target if self.goal == "maximize" else value <= self.target


@dataclass(frozen=True)
class Stopping:
    """The keys of `early_terminate`: trials are compared after `first` evaluations, `first * eta`, and so on.

    One trial in `eta` continues. As in W&B, this is a single bracket of hyperband (Li et al. 2018), run as
    asynchronous successive halving (Li et al. 2020).
    """

    type: Literal["hyperband"] | None = None
    min_iter: Some | None = None
    """The number of evaluations before the first comparison."""
    max_iter: Some | None = None
    """With `s`, instead of `min_iter`: comparisons come `s` times before this number of evaluations."""
    s: Some | None = None
    eta: Annotated[int, Range(2, math.inf)] = 3
    strict: bool | None = None
    """Has an effect only with W&B's server."""

    def __post_init__(self) -> None:
        if self.type is None:
            raise ValueError("type is missing: use {type: hyperband, min_iter: 3}")
        given = [count is not None for count in (self.min_iter, self.max_iter, self.s)]
        if given not in ([True, False, False], [False, True, True]):
            raise ValueError("use either min_iter, or max_iter and s; other combinations have no effect")
        if self.max_iter is not None and self.max_iter < self.eta:
            lower = "" if self.max_iter < 2 else ", or lower eta"  # which is at least 2
            raise ValueError(f"max_iter={self.max_iter} leaves no comparison; raise it{lower}")

    @property
    def first(self) -> int:
        """The number of evaluations before the first comparison."""
        if self.max_iter is None or self.s is None:
            return self.min_iter or 1
        first, times = self.max_iter // self.eta, 1
        while times < self.s and first >= self.eta:  # W&B leaves out comparisons before the first evaluation
            first, times = first // self.eta, times + 1
        return first

    @property
    def last(self) -> int | float:
        """The number of evaluations after which there is no comparison; infinite with `min_iter`."""
        return math.inf if self.max_iter is None else self.max_iter // self.eta

    def __str__(self) -> str:
        listed = [str(count) for count in (self.first, self.first * self.eta) if count <= self.last]
        if self.first * self.eta**2 <= self.last:
            listed.append("…" if math.isinf(self.last) else f"… up to {self.last}")
        return f"after {', '.join(listed)} evaluations one in {self.eta} continues"


@dataclass(frozen=True)
class SweepFile:
    """The keys of a sweep file."""

    method: Method
    parameters: dict[str, Any] = field(default_factory=dict)
    metric: Metric | None = None
    early_terminate: Stopping | None = None
    run_cap: Some | None = None
    command: list[str] | None = None
    program: str | None = None
    project: str | None = None
    entity: str | None = None
    name: str | None = None
    description: str | None = None
    apiVersion: str | None = None
    kind: str | None = None
    controller: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if self.controller not in (None, {"type": "cloud"}):
            raise ValueError(
                "controller: W&B's server chooses the trials (type: cloud), with --local Optuna: leave it out"
            )


@dataclass(frozen=True)
class Sweep:
    """A checked sweep file."""

    name: str
    file: SweepFile
    metric: Metric
    parameters: tuple[Parameter, ...]
    base: tuple[str, ...]
    """Arguments of `mtl train` that all trials share."""
    given: dict[str, Any]
    """The file's keys and values, as they are sent to W&B."""

    def points(self) -> int | None:
        """The number of a grid's points; `None` if trials are drawn, or if only W&B's server knows it."""
        sizes = [parameter.size for parameter in self.parameters]
        return None if self.file.method != "grid" or None in sizes else math.prod(filter(None, sizes))

    def limit(self, trials: int | None) -> int:
        """The maximum number of trials without a server: `trials`, else `run_cap`, and a grid's points.

        Raises `InputError` if there is no limit.
        """
        points, cap = self.points(), trials or self.file.run_cap
        if points is None and cap is None:
            raise InputError(f"method {self.file.method} never ends: use run_cap in the file, or --trials=20")
        return min(count for count in (points, cap) if count is not None)

    def check_local(self) -> None:
        """Raise `InputError` if only W&B's server can draw from one of the distributions."""
        for parameter in self.parameters:
            if parameter.server_only:
                raise InputError(
                    f"parameters: {parameter.key}: distribution {parameter.kind} runs only with W&B's "
                    "server; with --local use value, values, or min and max with uniform, int_uniform or "
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
    """The sweep of a file; `words` are added to the arguments that all trials share.

    Raises `InputError` with the file's name.
    """
    given = read_mapping(path, "sweep")
    try:
        return sweep_from({**given, "name": name or given.get("name") or path.stem}, words)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def sweep_from(given: Mapping[str, Any], words: Sequence[str] = ()) -> Sweep:
    """The sweep that a file's keys describe; raises `InputError` for keys and values that cannot be used."""
    if "method" not in given:
        raise InputError("method is missing: a sweep file needs method, metric and parameters")
    for key in _OF_LAUNCH:
        if key in given:
            raise InputError(f"{key} is a key of W&B Launch, which mtl does not use: leave it out")
    file = configuration_from(SweepFile, given)
    if file.metric is None and (file.method == "bayes" or file.early_terminate is not None):
        raise InputError("metric is missing: add metric: {name: dev/mean, goal: maximize}")
    for key in ("name", "goal"):
        if file.metric is not None and key not in given["metric"]:
            raise InputError(f"metric.{key} is missing: add metric: {{name: dev/mean, goal: maximize}}")
    parameters = tuple(parameters_from(given.get("parameters", {})))
    for parameter in parameters:
        if file.method == "grid" and parameter.size is None and not parameter.server_only:
            raise InputError(
                f"a grid needs values, but {parameter.key} is drawn from a range: list its values"
            )
    name = re.sub(r"[^\w.+-]+", "-", file.name or "").strip("-.")
    if not name:
        raise InputError(f"name '{file.name}' has no letters or digits: use another")
    base = (*_base_words(file), *words)
    _check_keys([parameter.key for parameter in parameters], base)
    command = ["mtl", "train", *base, ARGUMENTS]
    sent = {key: value for key, value in given.items() if key != "program"} | {"command": command}
    sent["parameters"] = with_distributions(given["parameters"])
    return Sweep(name, file, file.metric or Metric(), parameters, base, sent)


def _base_words(file: SweepFile) -> list[str]:
    """The arguments of `mtl train` in `command` or `program`; raises `InputError` for another command."""
    if file.command is None:
        if file.program is not None and Path(file.program).suffix not in (".yaml", ".yml"):
            raise InputError(
                f"program: {file.program} is not a configuration file; use "
                f"command: [mtl, train, FILE.yaml, '{ARGUMENTS}']"
            )
        return [] if file.program is None else [file.program]
    if file.program is not None:
        raise InputError(f"program: {file.program} has no effect together with command: leave it out")
    base = file.command[2:-1]
    if [*file.command[:2], *file.command[-1:]] != ["mtl", "train", ARGUMENTS] or "${" in "".join(base):
        raise InputError(
            f"command must be [mtl, train, FILE.yaml, --key=value, '{ARGUMENTS}'], with or without FILE.yaml "
            f"and --key=value, not [{', '.join(file.command)}]"
        )
    return base


def _check_keys(keys: Sequence[str], base: Sequence[str]) -> None:
    """Raise `InputError` for a parameter that is given twice, lies inside another, or is set in `base`."""
    for position, key in enumerate(keys):
        if key in keys[:position]:
            raise InputError(f"parameter {key} is given twice, nested and dotted")
        inside = next((other for other in keys if other.startswith(f"{key}.")), None)
        if inside is not None:
            raise InputError(f"parameters: {inside} is a part of {key}, which is also given: leave one out")
    for word in base:
        if word.startswith("--") and word[2:].split("=", 1)[0] in keys:
            raise InputError(
                f"{word} in the command has no effect, since it is a parameter of the sweep: leave one out"
            )
