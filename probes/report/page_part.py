"""What a piece of evidence may add to the page."""

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
    """What a part of the page is made from."""

    data: ReportData
    masks: Mapping[str, Masks]
    """By setup."""
    claims: Claims


@dataclass(frozen=True)
class Section:
    """A section of the page, below the one on overlap."""

    id: str
    title: str
    """In the page's navigation."""
    html: Markup


@dataclass(frozen=True)
class Shown:
    """What the page shows of a piece of evidence, beside its answer."""

    lead: Markup | None = None
    """Above the notes."""
    sections: Sequence[Section] = ()
    terms: Mapping[str, Sequence[tuple[str, Markup]]] = field(default_factory=dict)
    """Further words of the page with what they mean, by the word that they follow."""
    on_overlap: str = ""
    """A sentence for those who read the section on overlap."""
    style: str = ""
    """CSS."""
    head_skills: pl.DataFrame | None = None
    """Mean skills that the explorer lists: attention, layer, head, static, stl, joint, loss."""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """By file name."""
    printed: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """What LaTeX gets of tables instead."""
    notes: Sequence[str] = ()
    lines: Sequence[str] = ()
    """What `mtl report` prints of it."""


@dataclass(frozen=True)
class PagePart:
    """What one piece of evidence adds to the page."""

    answer: Callable[[PageData], Answer] | None = None
    """Its answer on the first screen."""
    shown: Callable[[PageData], Shown] | None = None


def answers(page: PageData, parts: Sequence[PagePart]) -> tuple[Answer, ...]:
    """All answers; none for runs of one task, of which nothing can be asked that is about several."""
    if len(page.data.metrics) < 2 or page.data.sweep is not None:
        return ()
    return tuple(part.answer(page) for part in parts if part.answer is not None)
