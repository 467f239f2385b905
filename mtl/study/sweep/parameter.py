"""The parameters of a sweep file: the keys that trials vary, and what Optuna draws for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mtl.errors import InputError, did_you_mean
from mtl.tasks.in_words import as_text, counted

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
