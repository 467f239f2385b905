"""How findings are worded: a difference with a word for its sign, and what learned claims alone say."""

from __future__ import annotations

import math
from dataclasses import dataclass

ANY = "any number"
"""The words for a number that is not finite."""


@dataclass(frozen=True)
class SignedWords:
    """How a difference is worded: `less` is the word for values of at least zero, `more` for those below."""

    less: str
    more: str
    unit: str
    decimals: int = 2
    scale: float | int = 1
    """The factor of values, such as 100 for shares in per cent."""
    most: float | int = math.inf
    """The largest size of an interval's end that means something; `ANY` is printed for others."""

    def of(self, value: float | None) -> str:
        """A number without its sign, its unit and the word for its sign: `4.0 % more`."""
        number = self._number(value)
        return ANY if number is None else f"{self._size(number)} {self.unit} {self._word(number)}"

    def interval(self, low: float | None, high: float | None) -> str:
        """Both ends, each with its word: `4.0 % more to 5.6 % less`, or `0.5 to 5.6 % less`."""
        low, high = (end if end is not None and abs(end) <= self.most else None for end in (low, high))
        first, last = self._number(low), self._number(high)
        if first is None or last is None or self._word(first) != self._word(last):
            return f"{self.of(low)} to {self.of(high)}"
        return f"{self._size(first)} to {self._size(last)} {self.unit} {self._word(last)}"

    def _number(self, value: float | None) -> float | None:
        """The value as it is printed, so that what rounds to zero has no sign; `None` if not finite."""
        known = value is not None and math.isfinite(value)
        return round(self.scale * value, self.decimals) if known and value is not None else None

    def _size(self, number: float) -> str:
        return f"{abs(number):.{self.decimals}f}"

    def _word(self, number: float) -> str:
        return self.less if number >= 0 else self.more


def beside_learned(of_all: tuple[str, str], of_learned: tuple[str, str]) -> str:
    """What a statement adds on the claims that no target forced; both statements are word and reason."""
    if of_all == of_learned:
        return "; counting only heads that training itself kept, the same"
    word, reason = of_learned
    agree = "the same answer" if of_all[0] == word else f"another answer, {word}"
    return f"; counting only heads that training itself kept, {agree}: {reason}"
