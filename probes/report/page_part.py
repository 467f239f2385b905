"""The parts of the page that a piece of evidence may add."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl
from markupsafe import Markup

from mtl.probes.report.answer import Answer
from mtl.probes.report.claims import Claims
from mtl.probes.report.data import ReportData
from mtl.probes.statistics.masks import Masks


@dataclass(frozen=True)
class PageData:
    """The data that a part of the page is made from."""

    data: ReportData
    masks: Mapping[str, Masks]
    """The masks of each setup."""
    claims: Claims


@dataclass(frozen=True)
class Section:
    """A section of the page, below the one on overlap."""

    id: str
    title: str
    """The title in the page's navigation."""
    html: Markup


@dataclass(frozen=True)
class Shown:
    """What the page shows of a piece of evidence, besides its answer."""

    lead: Markup | None = None
    """A paragraph above the notes."""
    sections: Sequence[Section] = ()
    terms: Mapping[str, Sequence[tuple[str, Markup]]] = field(default_factory=dict)
    """Further words for the page's glossary with their meanings, by the word that they follow."""
    on_overlap: str = ""
    """A sentence for the section on overlap."""
    style: str = ""
    """CSS for its parts."""
    head_skills: pl.DataFrame | None = None
    """Mean skills for the head explorer: attention, layer, head, static, stl, joint, loss."""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """Tables by file name."""
    printed: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """What LaTeX gets instead of some tables."""
    notes: Sequence[str] = ()
    lines: Sequence[str] = ()
    """Lines that `mtl report` prints."""


@dataclass(frozen=True)
class PagePart:
    """What a piece of evidence adds to the page."""

    answer: Callable[[PageData], Answer] | None = None
    """Makes its answer."""
    shown: Callable[[PageData], Shown] | None = None


def answers(page: PageData, parts: Sequence[PagePart]) -> tuple[Answer, ...]:
    """All answers; none for runs of one task and for sweeps, since all questions are about several tasks."""
    if len(page.data.metrics) < 2 or page.data.sweep is not None:
        return ()
    return tuple(part.answer(page) for part in parts if part.answer is not None)
