"""Parts of the page: answers to questions, sections of evidence, and their templates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mtl.probes.report import scores
from mtl.probes.report.data import Claims, ReportData
from mtl.probes.statistics.masks import Masks
from mtl.probes.statistics.significance import CANNOT_TELL
from mtl.probes.tables.table_files import About


@dataclass(frozen=True)
class AnswerNumber:
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
) -> tuple[AnswerNumber, ...]:
    """An estimate for each row of a table, by the names of its columns; absent columns give `None`."""

    def number(row: Mapping[str, Any], name: str) -> float | None:
        found = row.get(name)
        return None if found is None or not math.isfinite(found) else float(found)

    return tuple(
        AnswerNumber(
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
    about: Mapping[str, About] = field(default_factory=dict, kw_only=True)
    """What the files of these tables say of their numbers."""
    notes: tuple[str, ...] = ()
    command: str = ""
    """What answers the question if these runs cannot: a command, or a line of a configuration."""
    estimates: Sequence[AnswerNumber] = ()
    scope: str = ""
    """What the word holds for, if not for all that the question asks about: `for 1 of 3 pairs`."""

    def record(self) -> dict[str, Any]:
        """The answer for programs: everything but figures and tables."""
        return {
            "question": self.question, "word": self.word, "scope": self.scope, "reason": self.reason,
            "limit": self.limit, "command": self.command, "notes": list(self.notes),
            "estimates": [asdict(one) for one in self.estimates],
        }  # fmt: skip

    @property
    def told(self) -> bool:
        """Whether the runs answer the question."""
        return self.word != CANNOT_TELL

    def line(self) -> str:
        """The answer as a line of text."""
        scoped = f"{self.word}, {self.scope}" if self.scope else self.word
        return f"{self.question} {scoped[0].upper()}{scoped[1:]}: {self.reason}."


@dataclass(frozen=True)
class PageData:
    """The data that a part of the page is made from."""

    data: ReportData
    masks: Mapping[str, Masks]
    """The masks of each setup."""
    claims: Claims


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    id: str
    title: str
    """The title in the page's navigation."""
    html: Markup


@dataclass(frozen=True)
class ShownEvidence:
    """What the page shows of a piece of evidence, besides its answer."""

    opening: Markup | None = None
    """What the page begins with."""
    card: Markup | None = None
    """A section on the first screen."""
    lead: Markup | None = None
    """A paragraph above the notes."""
    sections: Sequence[Section] = ()
    """Sections below the one on overlap."""
    first: Sequence[Section] = ()
    """Sections above the one of scores."""
    terms: Mapping[str, Sequence[tuple[str, Markup]]] = field(default_factory=dict)
    """Further words for the page's glossary with their meanings, by the word that they follow."""
    on_scores: Markup | None = None
    """Figures for the section on scores."""
    on_overlap: str = ""
    """A sentence for the section on overlap."""
    style: str = ""
    """CSS for its parts."""
    head_skills: pl.DataFrame | None = None
    """Mean skills for the head explorer: attention, layer, head, pretrained, stl, joint, loss."""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """Tables by file name."""
    printed: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """What LaTeX gets instead of some tables."""
    about: Mapping[str, About] = field(default_factory=dict)
    """What the files of these tables say of their numbers."""
    notes: Sequence[str] = ()
    lines: Sequence[str] = ()
    """Lines that `mtl report` prints."""


@dataclass(frozen=True)
class PagePart:
    """What a piece of evidence adds to the page."""

    answer: Callable[[PageData], Answer | None] | None = None
    """Makes its answer; `None`: the page has none."""
    shown: Callable[[PageData], ShownEvidence] | None = None


def answers(page: PageData, parts: Sequence[PagePart]) -> tuple[Answer, ...]:
    """All answers; none for runs of one task, since all questions are about several tasks."""
    if len(page.data.metrics) < 2:
        return ()
    made = (part.answer(page) for part in parts if part.answer is not None)
    return tuple(answer for answer in made if answer is not None)


@cache
def environment(package: str = "mtl.probes.report") -> Environment:
    """The Jinja environment of a package's templates."""
    made = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "sort_keys": False}
    made.filters |= {
        "number": scores.number,
        "signed": scores.signed,
        "chance": scores.chance,
        "sort_key": scores.sort_key,
    }
    made.globals |= {"number_or_text": scores.number_or_text}
    return made


def package_text(name: str, package: str = "mtl.probes.report") -> str:
    """The text of a package's file."""
    return (files(package) / name).read_text(encoding="utf-8")
