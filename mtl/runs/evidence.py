"""The registry of evidence: what packages beside the core read out of many runs, and draw and say about it.

An entry of the registry `evidence` (`mtl.registries`) is a table of pieces. Its module imports nothing heavy,
since the names of figures are choices of the command line. Without such packages, there are no pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from mtl.registries import entry, names
from mtl.runs.figures.row import FigureRow

if TYPE_CHECKING:
    from mtl.probes.report.page_part import PagePart


@dataclass(frozen=True)
class Evidence:
    """A piece of evidence. Its functions are named `MODULE:FUNCTION`, and imported when they are used."""

    title: str
    """Its name in notes."""
    table: str | None = None
    """From the runs (`RunsRead` of `mtl.runs.report.gather`) to a table or `None`, and notes. If it raises an
    `InputError`, the report has a note instead."""
    figures: Mapping[str, FigureRow] = field(default_factory=dict)
    """Its figures by name."""
    of_study: str | None = None
    """From `ReportData` and the setup that gives claims to the figures that a study's report draws: by name,
    the runs."""
    answer: str | None = None
    """Its answer on the report's first screen; see `PagePart` of `mtl.probes.report.page_part`."""
    shown: str | None = None
    """What else the report's page shows about it; see `PagePart`."""
    tables: tuple[str, ...] = ()
    """Patterns for the names of its tables in a study's report."""


def page_parts() -> tuple[PagePart, ...]:
    """What all pieces of evidence add to the report's page."""
    from mtl.probes.report.page_part import PagePart

    return tuple(PagePart(_loaded(piece.answer), _loaded(piece.shown)) for piece in evidence().values())


def _loaded(function: str | None) -> Callable[..., Any] | None:
    return None if function is None else resolve_name(function)


@cache
def evidence() -> Mapping[str, Evidence]:
    """Every piece of evidence by its name, from all tables in the registry in their order."""
    return {key: piece for table in names("evidence") for key, piece in entry("evidence", table).items()}
