"""The parameters of a sweep file in W&B's words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scipy import stats

from mtl.errors import InputError, did_you_mean
from mtl.sweep.parameter import Listed, Parameter, Quantiles, Range

FIELDS: dict[str, tuple[str, ...]] = {
    "constant": ("value",),
    "categorical": ("values",),
    "categorical_w_probabilities": ("values", "probabilities"),
    "int_uniform": ("min", "max"),
    "uniform": ("min", "max"),
    "q_uniform": ("min", "max", "q"),
    "log_uniform": ("min", "max"),
    "log_uniform_values": ("min", "max"),
    "q_log_uniform": ("min", "max", "q"),
    "q_log_uniform_values": ("min", "max", "q"),
    "inv_log_uniform": ("min", "max"),
    "inv_log_uniform_values": ("min", "max"),
    "normal": ("mu", "sigma"),
    "q_normal": ("mu", "sigma", "q"),
    "log_normal": ("mu", "sigma"),
    "q_log_normal": ("mu", "sigma", "q"),
    "beta": ("a", "b"),
    "q_beta": ("a", "b", "q"),
}
"""W&B's distributions and what each is described by."""

_DEFAULTS: dict[str, int | float] = {"q": 1, "mu": 0.0, "sigma": 1.0, "a": 1.0, "b": 1.0}
MOST_EXPONENT = 700
"""Of e, so that the power is a number above 0."""
_EVERY_FIELD = tuple(dict.fromkeys(["distribution", *(name for names in FIELDS.values() for name in names)]))
_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


def parameters_from(tree: Any) -> Iterator[Parameter]:
    """All parameters, nested or with dotted names; raises `InputError` for what W&B does not know either."""
    return (each.parameter() for each in _descriptions(tree))


def described(tree: Any) -> dict[str, str]:
    """What the parameters are drawn from, in W&B's words and with its defaults, by dotted key."""
    return {each.key: each.text() for each in _descriptions(tree)}


def _descriptions(tree: Any, place: str = "parameters", prefix: str = "") -> Iterator[_Description]:
    if not tree or not isinstance(tree, Mapping):
        said = "is empty" if not tree else f"is '{tree}', not a mapping"
        raise InputError(f"{place} {said}: give at least one dotted key with value, values, or min and max")
    for name, given in tree.items():
        key, where = f"{prefix}{name}", f"{place}.{name}"
        if not isinstance(given, Mapping):
            raise InputError(f"{where}: give value, values, or min and max, for instance {{values: [1, 2]}}")
        if "parameters" in given:
            beside = next((str(each) for each in given if each != "parameters"), None)
            if beside is not None:
                raise InputError(f"{where}: parameters nests others; {beside} cannot stand beside it")
            yield from _descriptions(given["parameters"], f"{where}.parameters", f"{key}.")
        else:
            yield _Description(key, where, given)


@dataclass(frozen=True)
class _Description:
    """What a sweep file says on one parameter."""

    key: str
    where: str
    given: Mapping[str, Any]

    def text(self) -> str:
        kind = self._kind()
        said = (f"{name} {self.given.get(name, _DEFAULTS.get(name))}" for name in FIELDS[kind])
        return f"{kind}: {', '.join(said)}"

    def parameter(self) -> Parameter:
        kind = self._kind()
        for name in self.given:
            if name != "distribution" and name not in FIELDS[kind]:
                raise InputError(f"{self.where}: {kind} has no {name}, only {', '.join(FIELDS[kind])}")
        if kind == "constant":
            return Listed(self.key, (self._needed("value", kind),))
        if kind.startswith("categorical"):
            return self._listed(kind)
        q = self._number("q", kind) if kind.startswith("q_") else None
        if q is not None and q <= 0:
            raise InputError(
                f"{self.where}.q={q}: give a number above 0, to whose multiples values are rounded"
            )
        plain = kind.removeprefix("q_")
        if plain in ("normal", "log_normal", "beta"):
            return self._quantiles(plain, kind, q)
        return self._range(plain, kind, q)

    def _kind(self) -> str:
        unknown = [name for name in self.given if name not in _EVERY_FIELD]
        if unknown:
            raise InputError(
                f"{self.where}: unknown '{unknown[0]}'{did_you_mean(str(unknown[0]), _EVERY_FIELD)}"
            )
        kind = self.given.get("distribution")
        if kind is not None:
            if not isinstance(kind, str) or kind not in FIELDS:
                raise InputError(
                    f"{self.where}: unknown distribution '{kind}'{did_you_mean(str(kind), FIELDS)}"
                )
            return kind
        if "value" in self.given:
            return "constant"
        if "values" in self.given:
            return "categorical_w_probabilities" if "probabilities" in self.given else "categorical"
        if "min" in self.given and "max" in self.given:
            whole = all(isinstance(self.given[end], int) for end in ("min", "max"))
            return "int_uniform" if whole else "uniform"
        raise InputError(f"{self.where}: give value, values, min and max, or a distribution")

    def _listed(self, kind: str) -> Listed:
        values = self._needed("values", kind)
        if not isinstance(values, list) or not values:
            raise InputError(f"{self.where}.values: give a list of at least one value")
        choices = tuple(map(_read, values))
        repeated = next((each for place, each in enumerate(choices) if each in choices[:place]), None)
        if repeated is not None and len({(type(each), str(each)) for each in choices}) < len(choices):
            raise InputError(f"{self.where}.values: {repeated} stands there twice")
        if kind == "categorical":
            return Listed(self.key, choices)
        shares = self._needed("probabilities", kind)
        fine = isinstance(shares, list) and all(_is_number(share) and share >= 0 for share in shares)
        if not fine or len(shares) != len(choices) or not math.isclose(sum(shares), 1, abs_tol=1e-6):
            raise InputError(
                f"{self.where}.probabilities: give as many numbers as values ({len(choices)}), that sum to 1"
            )
        return Listed(self.key, choices, tuple(map(float, shares)))

    def _range(self, plain: str, kind: str, q: int | float | None) -> Range:
        low, high = (self._number(end, kind) for end in ("min", "max"))
        if plain == "int_uniform" and not (isinstance(low, int) and isinstance(high, int)):
            raise InputError(f"{self.where}: int_uniform needs whole numbers for min and max")
        if low >= high:  # W&B refuses both
            said = "is above" if low > high else "is not below"
            raise InputError(f"{self.where}: min={low:g} {said} max={high:g}")
        if plain.endswith("_values") and low <= 0:
            raise InputError(f"{self.where}: min={low:g} has no logarithm: give a number above 0")
        if plain in ("log_uniform", "inv_log_uniform"):
            if max(abs(low), abs(high)) > MOST_EXPONENT:
                raise InputError(
                    f"{self.where}: min and max of {kind} are exponents of e, and "
                    f"e**{max(low, high, key=abs):g} is no usable number: for the values themselves write "
                    f"distribution: {kind}_values"
                )
            # W&B means the exponents of e, or of 1 / e.
            low, high = (low, high) if plain == "log_uniform" else (-high, -low)
            low, high = math.exp(low), math.exp(high)
        return Range(self.key, low, high, "log" in plain, plain == "int_uniform", q)

    def _quantiles(self, plain: str, kind: str, q: int | float | None) -> Quantiles:
        first, second = (self._number(name, kind) for name in FIELDS[plain])
        if second <= 0 or (plain == "beta" and first <= 0):
            raise InputError(
                f"{self.where}: {kind} needs {' and '.join(FIELDS[plain][plain != 'beta' :])} above 0"
            )
        if plain == "log_normal" and abs(first) + 10 * second > MOST_EXPONENT:
            raise InputError(
                f"{self.where}: mu and sigma of {kind} are those of the logarithm: mu={first:g} and "
                f"sigma={second:g} reach beyond what numbers can hold"
            )
        if plain == "normal":
            return Quantiles(self.key, stats.norm(first, second).ppf, False, q)
        if plain == "log_normal":
            return Quantiles(self.key, stats.lognorm(second, scale=math.exp(first)).ppf, True, q)
        return Quantiles(self.key, stats.beta(first, second).ppf, False, q)

    def _needed(self, name: str, kind: str) -> Any:
        if name not in self.given:
            raise InputError(f"{self.where}: {kind} needs {name}")
        return self.given[name]

    def _number(self, name: str, kind: str) -> int | float:
        if name in _DEFAULTS and name not in self.given:
            return _DEFAULTS[name]
        value = self._needed(name, kind)
        if isinstance(value, str) and _EXPONENT.fullmatch(value):
            raise InputError(
                f"{self.where}.{name}: YAML (and so W&B) reads {value} as a text: write {_with_point(value)}"
            )
        if not _is_number(value):
            raise InputError(f"{self.where}.{name}: '{value}' is no number")
        number: int | float = value
        return number


def _read(value: Any) -> Any:
    """A listed value; YAML 1.1 takes 1e-4 for a text, which as a command line argument is a number again."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def _with_point(text: str) -> str:
    mantissa, exponent = re.split("[eE]", text)
    sign = "" if exponent[0] in "+-" else "+"
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{sign}{exponent}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
