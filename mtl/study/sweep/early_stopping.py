"""Early termination: when the trials of a sweep are compared and the worse ones stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Stopping:
    """The keys of `early_terminate`: trials are compared after `first` evaluations, `first * eta`, and so on.

    One trial in `eta` continues. As in W&B, this is a single bracket of hyperband (Li et al. 2018), run as
    asynchronous successive halving (Li et al. 2020).
    """

    type: Literal["hyperband"] | None = None
    min_iter: int | None = None
    """The number of evaluations before the first comparison."""
    max_iter: int | None = None
    """With `s`, instead of `min_iter`: comparisons come `s` times before this number of evaluations."""
    s: int | None = None
    eta: int = 3
    strict: bool | None = None
    """Has an effect with W&B's server only."""

    def __post_init__(self) -> None:
        if self.type is None:
            raise ValueError("type is missing: use {type: hyperband, min_iter: 3}")
        if min(1 if count is None else count for count in (self.min_iter, self.max_iter, self.s)) < 1:
            raise ValueError("min_iter, max_iter and s are whole numbers above 0")
        if self.eta < 2:
            raise ValueError(f"eta={self.eta}: one trial in eta continues; use 2 or more")
        given = [count is not None for count in (self.min_iter, self.max_iter, self.s)]
        if given not in ([True, False, False], [False, True, True]):
            raise ValueError("use either min_iter, or max_iter and s; other combinations have no effect")
        if self.max_iter is not None and self.max_iter < self.eta:
            raise ValueError(f"max_iter={self.max_iter} leaves no comparison; raise it, or lower eta")

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
    def last(self) -> int | None:
        """The number of evaluations after which no comparison comes; `None`: there is no last one."""
        return None if self.max_iter is None else self.max_iter // self.eta

    def compares_after(self, evaluation: int) -> bool:
        """Whether a comparison may come after this number of evaluations."""
        return self.last is None or evaluation <= self.last

    def __str__(self) -> str:
        numbers = [self.first * self.eta**power for power in range(2)]
        if self.last is None:
            listed = f"{numbers[0]}, {numbers[1]}, …"
        else:
            numbers = [number for number in numbers if number <= self.last]
            more = numbers[-1] * self.eta <= self.last
            listed = ", ".join(str(number) for number in numbers) + (f", … up to {self.last}" if more else "")
        return f"after {listed} evaluations one in {self.eta} continues"
