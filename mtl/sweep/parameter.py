"""A parameter of a sweep: what Optuna draws for it, and which value of the configuration that stands for."""

from __future__ import annotations

import bisect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from mtl.errors import InputError

Scale = Literal["linear", "log", "categories"]
EDGE = 1e-9
"""Probabilities nearer to 0 or 1 are not drawn: a normal distribution is infinite there."""
MOST_STEPS = 1_000_000
"""Of one parameter in a grid."""


@dataclass(frozen=True)
class Parameter(ABC):
    """A dotted key of the configuration and the values that it may take."""

    key: str

    @property
    @abstractmethod
    def scale(self) -> Scale:
        """How its values are best laid out on an axis."""

    @abstractmethod
    def drawn_from(self) -> BaseDistribution:
        """What Optuna draws from."""

    @abstractmethod
    def value(self, drawn: Any) -> Any:
        """The configuration's value for what was drawn."""

    @abstractmethod
    def points(self) -> Sequence[Any] | None:
        """Everything that a grid draws, in order; `None` if a grid cannot take it."""

    def on_grid(self) -> Parameter | None:
        """What a grid takes in its place; `None` if W&B's grid does not take it."""
        return None if self.points() is None else self

    @abstractmethod
    def examples(self) -> tuple[Any, ...]:
        """Values to try on the configuration before the first trial: all listed ones, or both ends."""


@dataclass(frozen=True)
class Listed(Parameter):
    """One of several values, each equally probable, or as `probabilities` say."""

    choices: tuple[Any, ...]
    probabilities: tuple[float, ...] | None = None

    @property
    def scale(self) -> Scale:
        return "categories"

    def drawn_from(self) -> BaseDistribution:
        # Values may be lists, which Optuna does not take: it draws their places.
        if self.probabilities is None:
            return CategoricalDistribution(tuple(range(len(self.choices))))
        return FloatDistribution(0.0, 1.0)

    def value(self, drawn: Any) -> Any:
        if self.probabilities is None:
            return self.choices[drawn]
        place = bisect.bisect_right(list(itertools.accumulate(self.probabilities)), drawn)
        return self.choices[min(place, self._last())]

    def points(self) -> Sequence[Any] | None:
        # A grid takes every value once, so that probabilities would have no effect.
        return range(len(self.choices)) if self.probabilities is None else None

    def examples(self) -> tuple[Any, ...]:
        return self.choices

    def _last(self) -> int:
        """The last value that can be drawn: the sum of the probabilities may end a little below 1."""
        assert self.probabilities is not None
        return max(place for place, share in enumerate(self.probabilities) if share > 0)


@dataclass(frozen=True)
class Range(Parameter):
    """Numbers between two ends, uniform on a linear or logarithmic scale; rounded to multiples of `q`."""

    low: int | float
    high: int | float
    log: bool = False
    integer: bool = False
    q: int | float | None = None

    @property
    def scale(self) -> Scale:
        return "log" if self.log else "linear"

    def drawn_from(self) -> BaseDistribution:
        if self.integer:
            return IntDistribution(int(self.low), int(self.high))
        return FloatDistribution(float(self.low), float(self.high), log=self.log)

    def value(self, drawn: Any) -> Any:
        return drawn if self.q is None else rounded(drawn, self.q)

    def points(self) -> Sequence[Any] | None:
        return range(int(self.low), int(self.high) + 1) if self.integer else None

    def on_grid(self) -> Parameter | None:
        if self.q is None or self.log:
            return self if self.integer else None
        # A grid goes in steps of `q` from the lower end (W&B's does), which need not be a multiple of `q`.
        steps = math.floor((self.high - self.low) / self.q + EDGE)
        if steps > MOST_STEPS:
            raise InputError(f"parameters: {self.key} has {steps + 1} values in a grid: raise q={self.q:g}")
        places = (self.low + step * self.q for step in range(steps + 1))
        whole = isinstance(self.low, int) and isinstance(self.q, int)
        return Listed(self.key, tuple(place if whole else float(f"{place:.12g}") for place in places))

    def examples(self) -> tuple[Any, ...]:
        # As they are drawn: a range that is not of whole numbers draws none, whatever its ends.
        ends = (int(end) if self.integer else float(end) for end in (self.low, self.high))
        return tuple(self.value(end) for end in ends)


@dataclass(frozen=True)
class Quantiles(Parameter):
    """Numbers of any distribution, by its quantile function; with `q` rounded to its multiples."""

    quantile: Callable[[Any], Any]
    log: bool = False
    q: int | float | None = None

    @property
    def scale(self) -> Scale:
        return "log" if self.log else "linear"

    def drawn_from(self) -> BaseDistribution:
        return FloatDistribution(EDGE, 1 - EDGE)

    def value(self, drawn: Any) -> Any:
        number = float(self.quantile(drawn))
        return number if self.q is None else rounded(number, self.q)

    def points(self) -> None:
        return None

    def examples(self) -> tuple[Any, ...]:
        return tuple(self.value(place) for place in (0.01, 0.5, 0.99))


def rounded(number: int | float, q: int | float) -> int | float:
    """The multiple of `q` next to a number, whole if `q` is."""
    multiple = round(number / q) * q
    return int(multiple) if isinstance(q, int) else float(f"{multiple:.12g}")
