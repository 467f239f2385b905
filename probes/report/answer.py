"""An answer of the page's first screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl
from markupsafe import Markup

CANNOT_TELL = "cannot tell"


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

    @property
    def told(self) -> bool:
        """Whether the runs answer it."""
        return self.word != CANNOT_TELL

    def line(self) -> str:
        """The answer as a line of text."""
        return f"{self.question} {self.word[0].upper()}{self.word[1:]}: {self.reason}."
