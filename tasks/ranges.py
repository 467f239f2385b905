"""The numbers that a setting may have, beside its type: `dim: Size`, `beam: Annotated[int, Range(1, 9)]`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; the ends belong to it unless they are `open`."""

    low: int | float
    high: int | float
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: int | float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        if self.open_low and self.open_high:
            return f"between {self.low:,} and {self.high:,}"
        low = f"above {self.low:,}" if self.open_low else f"from {self.low:,}"
        high = "" if math.isinf(self.high) else f" {'to below' if self.open_high else 'to'} {self.high:,}"
        return f"{low}{high}"

    def wanted(self) -> str:
        """What to use, for a message."""
        if math.isinf(self.high) and not self.open_low:
            return f"at least {self.low:,}" if self.low else "0 or more"
        return f"a number {self}"


Share = Annotated[float, Range(0, 1)]
Dropout = Annotated[float, Range(0, 1, open_high=True)]
Size = Annotated[int, Range(1, 65_536)]
Count = Annotated[int, Range(1, 1_000_000)]
Some = Annotated[int, Range(1, math.inf)]
"""A count without an upper bound."""
CountOrNone = Annotated[int, Range(0, 1_000_000)]
"""A count, or 0 for none at all."""
Seed = Annotated[int, Range(0, 2**32 - 1)]
"""A seed of numpy's and torch's generators."""
