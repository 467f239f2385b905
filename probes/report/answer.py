"""An answer of the page's first screen."""

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
    """A number that an answer rests on, or that is shown next to it; `None`: unknown, or an infinite end."""

    what: str
    """What differs between the estimates of an answer: task, setup, kind."""
    estimate: float | None
    low: float | None
    high: float | None
    """Ends of the interval."""
    level: float | None
    """The share of intervals that hold the truth."""
    unit: str
    p: float | None
    word: str
    """The word on this estimate alone; empty if there is none."""
    n: int | None
    n_of: str
    """What is counted: seeds, runs, pairs."""
    source: str
    """The name of the table that has it, without suffix."""


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
    """The rows of a table with an estimate each, by the names of its columns; what it lacks is `None`."""

    def figure(row: Mapping[str, Any], name: str) -> float | None:
        found = row.get(name)
        return None if found is None or not math.isfinite(found) else float(found)

    return tuple(
        Estimate(
            ", ".join(str(row[name]) for name in what if row[name] not in (None, "")),
            figure(row, value), figure(row, low), figure(row, high), level if low in row else None, unit,
            figure(row, p), str(row.get(word) or ""), row.get(n), n_of or n, source,
        )
        for row in table.iter_rows(named=True)
    )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """The runs' answer to one question."""

    question: str
    word: str
    """Also *cannot tell* where runs are missing."""
    reason: str
    limit: str
    """What it cannot say, in one line."""
    figures: Sequence[tuple[Markup, str]] = ()
    """Figures, each with its caption."""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    command: str = ""
    """What answers the question where these runs cannot: a command, or a line of a study's grid."""

    estimates: Sequence[Estimate] = ()

    def record(self) -> dict[str, Any]:
        """What can be read by a program: all but the figures' pictures."""
        return {
            "question": self.question, "word": self.word, "reason": self.reason, "limit": self.limit,
            "command": self.command, "notes": list(self.notes),
            "estimates": [asdict(one) for one in self.estimates],
        }  # fmt: skip

    @property
    def told(self) -> bool:
        """Whether the runs answer it."""
        return self.word != CANNOT_TELL

    def line(self) -> str:
        """The answer as a line of text."""
        return f"{self.question} {self.word[0].upper()}{self.word[1:]}: {self.reason}."
