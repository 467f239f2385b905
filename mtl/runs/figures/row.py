"""A row of the figures' table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

MOVING = ("gif", "webp")
"""The kinds of files that hold moving figures."""


@dataclass(frozen=True)
class FigureRow:
    """One figure; its functions are named `MODULE:FUNCTION`, with the module in `room`."""

    summary: str
    draw: str | None = None
    """The function from a `FigureRequest` to a `FigureWithTables`; `None`: it can only be animated."""
    animate: str | None = None
    """The function that writes pictures for a `FigureRequest` to a file of a kind in `MOVING` and returns
    their number and notes; `None`: the figure cannot be animated."""
    tables: tuple[str, ...] = ("",)
    """Its tables, by what is added to the stem of the figure's file name."""
    uses: tuple[str, ...] = ("tasks",)
    """On which of the choices `tasks`, `split` and `measure` it depends."""
    room: str = "mtl.runs.figures"
    """The package that holds its functions' modules."""

    def kinds(self) -> tuple[str, ...]:
        """The kinds of files in which the figure can be written."""
        from mtl.probes.figures.style import FORMATS

        return (*(FORMATS if self.draw else ()), *(MOVING if self.animate else ()))

    def loaded(self, function: str) -> Callable[..., Any]:
        """The function `draw` or `animate`, imported."""
        found: Callable[..., Any] = resolve_name(f"{self.room}.{function}")
        return found
