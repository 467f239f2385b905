"""Answers of the page to questions about the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import polars as pl
from markupsafe import Markup

CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Estimate:
    """A number that an answer rests on or shows; `None`: unknown, or an infinite end."""

    what: str
    """What tells the estimates of an answer apart: task, setup, kind."""
    estimate: float | None
    low: float | None
    high: float | None
    """Ends of the interval."""
    level: float | None
    """The level of the interval: the share of such intervals that hold the truth."""
    unit: str
    p: float | None
    word: str
    """The word on this estimate alone; may be empty."""
    n: int | None
    n_of: str
    """What `n` counts: seeds, runs, pairs."""
    source: str
    """The name of the table that has the estimate, without suffix."""


def estimates_in(
    source: str,
    table: pl.DataFrame,
    what: Sequence[str],
    value: str,
    unit: str,
    n: str,
    *,
    n_of: str = "",
    low: str = "low",
    high: str = "high",
    level: float = 0.95,
    p: str = "p",
    word: str = "word",
) -> tuple[Estimate, ...]:
    """An estimate for each row of a table, by the names of its columns; absent columns give `None`."""

    def number(row: Mapping[str, Any], name: str) -> float | None:
        found = row.get(name)
        return None if found is None or not math.isfinite(found) else float(found)

    return tuple(
        Estimate(
            ", ".join(str(row[name]) for name in what if row[name] not in (None, "")),
            number(row, value), number(row, low), number(row, high), level if low in row else None, unit,
            number(row, p), str(row.get(word) or ""), row.get(n), n_of or n, source,
        )
        for row in table.iter_rows(named=True)
    )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """The runs' answer to one question."""

    question: str
    word: str
    """The answer in a word; *cannot tell* if runs are missing."""
    reason: str
    limit: str
    """What the answer cannot say, in one line."""
    figures: Sequence[tuple[Markup, str]] = ()
    """Figures, each with its caption."""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    command: str = ""
    """What answers the question if these runs cannot: a command, or a line of a study's grid."""
    estimates: Sequence[Estimate] = ()

    def record(self) -> dict[str, Any]:
        """The answer for programs: everything but figures and tables."""
        return {
            "question": self.question, "word": self.word, "reason": self.reason, "limit": self.limit,
            "command": self.command, "notes": list(self.notes),
            "estimates": [asdict(one) for one in self.estimates],
        }  # fmt: skip

    @property
    def told(self) -> bool:
        """Whether the runs answer the question."""
        return self.word != CANNOT_TELL

    def line(self) -> str:
        """The answer as a line of text."""
        return f"{self.question} {self.word[0].upper()}{self.word[1:]}: {self.reason}."
