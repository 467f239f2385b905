"""The parameters of a sweep file: the keys in which trials differ, and what Optuna draws for them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mtl.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from optuna.trial import Trial

Scale = Literal["linear", "log", "categories"]
LOCAL: dict[str, tuple[str, ...]] = {
    "constant": ("value",),
    "categorical": ("values",),
    "int_uniform": ("min", "max"),
    "uniform": ("min", "max"),
    "log_uniform_values": ("min", "max"),
}
"""The distributions that are drawn without W&B's server, and what describes each."""
SERVER_ONLY = (
    "categorical_w_probabilities", "log_uniform", "inv_log_uniform", "inv_log_uniform_values", "normal",
    "log_normal", "beta", "q_uniform", "q_log_uniform", "q_log_uniform_values", "q_normal", "q_log_normal",
    "q_beta",
)  # fmt: skip
"""W&B's other distributions."""
_FIELDS = (
    "distribution", "value", "values", "probabilities", "min", "max", "mu", "sigma", "q", "a", "b",
)  # fmt: skip
_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


@dataclass(frozen=True)
class Parameter:
    """A dotted key of the configuration and the values that it may take."""

    key: str
    kind: str
    """W&B's name of the distribution."""
    given: Mapping[str, Any]
    """What describes it; checked for the distributions in `LOCAL`."""

    @property
    def text(self) -> str:
        """What it is drawn from, in W&B's terms."""
        fields = (f"{name} {self.given[name]}" for name in _FIELDS[1:] if name in self.given)
        return f"{self.kind}: {', '.join(fields)}"

    @property
    def server_only(self) -> bool:
        """Whether only W&B's server draws from it."""
        return self.kind in SERVER_ONLY

    @property
    def varies(self) -> bool:
        """Whether trials differ in it."""
        return self.server_only or len(self.examples()) > 1

    @property
    def scale(self) -> Scale:
        """How its values are best laid out on an axis."""
        if self.kind.startswith(("constant", "categorical")):
            return "categories"
        return "log" if "log" in self.kind else "linear"

    def draw(self, trial: Trial) -> Any:
        """The configuration's value for a trial; the same again for a trial that resumes."""
        if self.scale == "categories":
            # Values may be lists, which Optuna does not take: it draws their positions.
            choices = self.examples()
            return choices[trial.suggest_categorical(self.key, tuple(range(len(choices))))]
        low, high = self.examples()
        if self.kind == "int_uniform":
            return trial.suggest_int(self.key, low, high)
        return trial.suggest_float(self.key, low, high, log=self.scale == "log")

    def points(self) -> tuple[Sequence[Any], Sequence[Any]] | None:
        """Everything that Optuna can draw, and the values it stands for; `None` if it cannot be listed."""
        if self.scale == "categories" and not self.server_only:
            return range(len(self.examples())), self.examples()
        if self.kind == "int_uniform":
            every = range(self.given["min"], self.given["max"] + 1)
            return every, every
        return None

    def examples(self) -> tuple[Any, ...]:
        """Values to try before the first trial: all listed ones, or both ends as they would be drawn."""
        if self.server_only:
            return ()
        if self.scale == "categories":
            return tuple(self.given["values"]) if "values" in self.given else (self.given["value"],)
        number = int if self.kind == "int_uniform" else float
        return number(self.given["min"]), number(self.given["max"])


def parameters_from(tree: Any, place: str = "parameters", prefix: str = "") -> Iterator[Parameter]:
    """All parameters, nested or with dotted names; raises `InputError` for bad descriptions."""
    if not tree or not isinstance(tree, Mapping):
        fault = "is empty" if not tree else f"is '{tree}', not a mapping"
        raise InputError(f"{place} {fault}: give at least one dotted key with value, values, or min and max")
    for name, given in tree.items():
        key, where = f"{prefix}{name}", f"{place}.{name}"
        if not isinstance(given, Mapping):
            raise InputError(f"{where}: give value, values, or min and max, for instance {{values: [1, 2]}}")
        if "parameters" not in given:
            yield _parameter(key, where, given)
            continue
        beside = next((str(field) for field in given if field != "parameters"), None)
        if beside is not None:
            raise InputError(f"{where}: parameters nests others; {beside} cannot be beside it")
        yield from parameters_from(given["parameters"], f"{where}.parameters", f"{key}.")


def _parameter(key: str, where: str, given: Mapping[str, Any]) -> Parameter:
    kind = _kind(where, given)
    if kind in SERVER_ONLY:
        return Parameter(key, kind, given)
    fields = LOCAL[kind]
    for name in given:
        if name != "distribution" and name not in fields:
            raise InputError(f"{where}: {kind} has no {name}, only {', '.join(fields)}")
    for name in fields:
        if name not in given:
            raise InputError(f"{where}: {kind} needs {name}")
    if kind == "categorical":
        return Parameter(key, kind, {"values": _values(where, given["values"])})
    if kind != "constant":
        low, high = (_number(f"{where}.{end}", given[end]) for end in fields)
        if kind == "int_uniform" and not (isinstance(low, int) and isinstance(high, int)):
            raise InputError(f"{where}: int_uniform needs whole numbers for min and max")
        if low >= high:  # W&B refuses both
            raise InputError(f"{where}: min={low:g} is {'above' if low > high else 'not below'} max={high:g}")
        if kind == "log_uniform_values" and low <= 0:
            raise InputError(f"{where}: min={low:g} has no logarithm: give a number above 0")
    return Parameter(key, kind, given)


def _kind(where: str, given: Mapping[str, Any]) -> str:
    """The name of a parameter's distribution, given or following from its fields as in W&B."""
    unknown = next((str(name) for name in given if name not in _FIELDS), None)
    if unknown is not None:
        raise InputError(f"{where}: unknown '{unknown}'{did_you_mean(unknown, _FIELDS)}")
    kind = given.get("distribution")
    if kind is not None:
        names = [*LOCAL, *SERVER_ONLY]
        if kind not in names:
            raise InputError(f"{where}: unknown distribution '{kind}'{did_you_mean(str(kind), names)}")
        return str(kind)
    if "value" in given:
        return "constant"
    if "values" in given:
        return "categorical_w_probabilities" if "probabilities" in given else "categorical"
    if "min" in given and "max" in given:
        return "int_uniform" if all(isinstance(given[end], int) for end in ("min", "max")) else "uniform"
    raise InputError(f"{where}: give value, values, min and max, or a distribution")


def _values(where: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise InputError(f"{where}.values: give a list of at least one value")
    # YAML 1.1 takes 1e-4 for a text, which as a command line argument is a number again.
    values = [
        float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value for value in values
    ]
    for position, value in enumerate(values):
        if any(type(value) is type(other) and value == other for other in values[:position]):
            raise InputError(f"{where}.values: {value} is given twice")
    return values


def _number(where: str, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        is_exponent = isinstance(value, str) and _EXPONENT.fullmatch(value)
        hint = " in YAML: write a point and a sign, as in 1.0e-5" if is_exponent else ""
        raise InputError(f"{where}: '{value}' is no number{hint}")
    return value
