"""Parts of the page: answers, sections of evidence, their templates; scores; and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mtl.probes.report.data import Claims, ReportData, Setup
from mtl.probes.statistics.masks import Masks, is_shared
from mtl.probes.statistics.significance import CANNOT_TELL
from mtl.probes.tables.table_files import About, by_catalogue, tasks_in


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

    def of_row(row: Mapping[str, Any], name: str) -> float | None:
        found = row.get(name)
        return None if found is None or not math.isfinite(found) else float(found)

    return tuple(
        AnswerNumber(
            ", ".join(str(row[name]) for name in what if row[name] not in (None, "")),
            of_row(row, value), of_row(row, low), of_row(row, high), level if low in row else None, unit,
            of_row(row, p), str(row.get(word) or ""), row.get(n), n_of or n, source,
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
        "number": number,
        "signed": signed,
        "chance": chance,
        "sort_key": sort_key,
    }
    made.tests["shared_mask"] = is_shared
    made.globals |= {"number_or_text": number_or_text}
    return made


def package_text(name: str, package: str = "mtl.probes.report") -> str:
    """The text of a package's file."""
    return (files(package) / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class ScoreCell:
    """The scores of a task in a setup, in per cent."""

    values: tuple[tuple[int, float], ...]
    """Seed and score; if there are several draws of random labels, their mean."""
    mean: float
    spread: float | None
    """Standard deviation over seeds (n - 1); `None` for a single seed."""
    difference: float | None
    """Mean less the baseline's mean, over seeds that both have; `None` if there are none."""


@dataclass(frozen=True)
class ScoreRow:
    """A setup and its cells in the order of tasks."""

    setup: Setup
    cells: tuple[ScoreCell | None, ...]
    mean: float | None
    """The mean over all tasks but those that others are only compared with; `None` if one is missing."""


def score_rows(data: ReportData) -> tuple[tuple[str, ...], tuple[ScoreRow, ...]]:
    """The tasks, and a row for every setup that has a score."""
    tasks = tuple(tasks_in(data.scores))
    by_seed: dict[tuple[str, str], dict[int, float]] = {}
    cell = data.scores.group_by("setup", "task", "seed", maintain_order=True).agg(pl.col("score").mean())
    for setup, task, seed, score in cell.iter_rows():
        by_seed.setdefault((setup, task), {})[seed] = score
    rows = []
    for setup in data.setups:
        cells = tuple(
            _cell(by_seed[setup.name, task], by_seed.get((setup.baseline or "", task), {}))
            if (setup.name, task) in by_seed
            else None
            for task in tasks
        )
        if any(cell is not None for cell in cells):
            averaged = zip(tasks, cells, strict=True)
            means = [
                None if cell is None else cell.mean
                for task, cell in averaged
                if task not in data.only_compared
            ]
            rows.append(ScoreRow(setup, cells, _mean(means)))
    return tasks, tuple(rows)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


@dataclass(frozen=True)
class JointCost:
    """What joint training costs a task."""

    task: str
    alone: float
    joint: float
    difference: float
    """Jointly less alone, over common seeds; negative: worse jointly."""
    lowest: float
    highest: float
    """The difference of the seed that loses most, and of the one that loses least."""
    seeds: int


def joint_costs(tasks: Sequence[str], rows: Sequence[ScoreRow]) -> tuple[str, list[JointCost]]:
    """The joint setup of most tasks without masks, and what it costs each of them; empty without one.

    A setup that was trained otherwise than its single tasks does not count.
    """
    of_setup = {row.setup.name: row for row in rows}
    joint = [
        row
        for row in rows
        if not row.setup.single and row.setup.pruning == "none" and row.setup.baseline in of_setup
        if not row.setup.unlike
    ]
    if not joint:
        return "", []
    row = max(joint, key=lambda row: row.setup.tasks)
    costs = []
    for task, cell, alone in zip(tasks, row.cells, of_setup[row.setup.baseline or ""].cells, strict=True):
        if cell is None or alone is None or cell.difference is None:
            continue
        before, after = dict(alone.values), dict(cell.values)
        common = sorted(before.keys() & after.keys())
        differences = [after[seed] - before[seed] for seed in common]
        costs.append(
            JointCost(
                task,
                float(np.mean([before[seed] for seed in common])),
                float(np.mean([after[seed] for seed in common])),
                cell.difference,
                min(differences),
                max(differences),
                len(common),
            )
        )
    return row.setup.name, costs


def _cell(scores: dict[int, float], baseline: dict[int, float]) -> ScoreCell:
    values = list(scores.values())
    common = sorted(set(scores) & set(baseline))
    return ScoreCell(
        tuple(sorted(scores.items())),
        float(np.mean(values)),
        float(np.std(values, ddof=1)) if len(values) > 1 else None,
        float(np.mean([scores[seed] - baseline[seed] for seed in common])) if common else None,
    )


def score_table(tasks: Sequence[str], rows: Sequence[ScoreRow]) -> pl.DataFrame:
    """A row per setup as papers print it: `94.37 ± 0.37` per task (`94.37` for one seed), mean, seeds."""
    table = [
        {
            "setup": row.setup.name,
            **{task: _with_spread(cell) for task, cell in zip(tasks, row.cells, strict=True)},
            "mean": row.mean,
        }
        for row in rows
    ]
    schema = {"setup": pl.String} | dict.fromkeys(tasks, pl.String) | {"mean": pl.Float64}
    return pl.DataFrame(table, schema).with_columns(seeds=pl.Series(map(_seeds, rows), dtype=pl.String))


def same_answer_in_words(same_answer: Mapping[str, Mapping[str, float]]) -> str:
    """What tasks score without a look at the input (`ReportData.same_answer`); empty if no task says."""
    words = {
        "majority": "one label for all items scores",
        "chance": "labels drawn at their frequencies score",
    }
    known = {key: {task: of[key] for task, of in same_answer.items() if key in of} for key in words}
    return "; ".join(
        f"{words[key]} {', '.join(f'{value:.2f} in {task}' for task, value in of_tasks.items())}"
        for key, of_tasks in known.items()
        if of_tasks
    )


def notes_on_scores(
    split: str, same_answer: Mapping[str, Mapping[str, float]] = MappingProxyType({})
) -> tuple[str, ...]:
    """What the numbers of `score_table` and `printed_scores` are, and what no learning scores."""
    beside = same_answer_in_words(same_answer)
    return (
        f"scores on {split} in %: the mean over seeds ± the standard deviation (n - 1); without ±, one seed",
        "seeds: how many there are of each task",
        "in bold, in .tex and .md: the highest of the column, whether or not a test tells it from the others",
        "in brackets, in .tex and .md: the difference in points from the setup in the column against, over "
        "the seeds of both",
        *((beside,) if beside else ()),
    )


def _seeds(row: ScoreRow) -> str:
    counts = sorted({len(cell.values) for cell in row.cells if cell is not None})
    return " to ".join(map(str, (counts[0], counts[-1]) if len(counts) > 1 else counts))


def _with_spread(cell: ScoreCell | None) -> str | None:
    if cell is None:
        return None
    return f"{cell.mean:.2f}" + ("" if cell.spread is None else f" ± {cell.spread:.2f}")


def printed_scores(tasks: Sequence[str], rows: Sequence[ScoreRow]) -> pl.DataFrame:
    """`score_table` for papers, with differences from the baseline, and the best of each column in `**`.

    Scores that are equal in two decimals are equally good. A single setup is not the best. A setup that was
    trained otherwise than its baseline (`Setup.unlike`) has no differences, since a paper would not say so.
    """
    columns: dict[str, list[tuple[float | None, str | None]]] = {
        task: [
            (None if cell is None else cell.mean, _in_print(cell, row.setup))
            for row in rows
            for cell in [row.cells[place]]
        ]
        for place, task in enumerate(tasks)
    }
    columns["mean"] = [(row.mean, None if row.mean is None else f"{row.mean:.2f}") for row in rows]
    marked = {name: _best_in_bold(values) for name, values in columns.items()}
    marked["seeds"] = list(map(_seeds, rows))
    differ = [
        any(cell is not None and cell.difference is not None for cell in row.cells) and not row.setup.unlike
        for row in rows
    ]
    marked["against"] = [row.setup.baseline if told else None for row, told in zip(rows, differ, strict=True)]
    schema = dict.fromkeys(("setup", *marked), pl.String)
    return pl.DataFrame({"setup": [row.setup.name for row in rows], **marked}, schema)


def _in_print(cell: ScoreCell | None, setup: Setup) -> str | None:
    if cell is None or cell.difference is None or setup.unlike:
        return _with_spread(cell)
    return f"{_with_spread(cell)} ({signed(cell.difference, 2)})"


def _best_in_bold(values: Sequence[tuple[float | None, str | None]]) -> list[str | None]:
    known = [round(value, 2) for value, _ in values if value is not None]
    best = max(known) if len(known) > 1 else None
    return [
        f"**{text}**" if value is not None and round(value, 2) == best else text for value, text in values
    ]


RISING = 1.0
"""Runs that gain more points on dev than this between their last two evaluations are undertrained."""
FACTS = ("data", "sentences", "epochs", "batch", "rates")
"""The columns of `ReportData.runs` that say on what and how runs were trained."""
_NAMED = 3
"""The most different values that a sentence names."""


def trained_in_words(runs: pl.DataFrame) -> str:
    """Corpora, sizes, epochs, batches and learning rates of all runs (`ReportData.runs`), if known."""
    epochs, _ = _values(runs, "epochs")
    words = {
        "data": ("trained on {}", "trained on {} sets of files"),
        "sentences": ("{} sentences (train + dev + test)", "{} sizes of corpora"),
        "epochs": ("{} epoch" if epochs == "1" else "{} epochs", "{} numbers of epochs"),
        "batch": ("batches of {}", "{} sizes of batches"),
        "rates": ("learning rates {} (encoder, decoders)", "{} pairs of learning rates"),
    }
    return ", ".join(
        (few if named else many).format(text)
        for name, (few, many) in words.items()
        for text, named in [_values(runs, name)]
        if text
    )


def told_columns(runs: pl.DataFrame) -> list[str]:
    """The columns of the table of runs that the page shows: facts of training only if runs differ in them."""
    left_out = {"versions", *(name for name in FACTS if name in runs.columns and runs[name].n_unique() == 1)}
    return [name for name in runs.columns if name not in left_out]


def _values(runs: pl.DataFrame, column: str) -> tuple[str, bool]:
    """The values of a column in words, or their number if there are too many; and whether it names them."""
    if column not in runs.columns:
        return "", False
    values = [value for value in runs[column].unique(maintain_order=True).drop_nulls().to_list() if value]
    if len(values) <= _NAMED:
        return " or ".join(values), True
    if all(value.isdigit() for value in values):
        return f"{min(map(int, values))} to {max(map(int, values))}", True
    return str(len(values)), False


def undertrained(history: pl.DataFrame) -> pl.DataFrame:
    """The setups and tasks whose scores on dev still rise by more than `RISING`: setup, task, rise.

    `history` is `ReportData.history`. The rise is that between the last two evaluations, in points, as a mean
    over seeds; runs with one evaluation do not count.
    """
    run = ["setup", "task", "run"]
    last = (
        history.sort("update", maintain_order=True)
        .group_by(run, maintain_order=True)
        .agg(rise=pl.col("score").diff().last())
    )
    means = last.drop_nulls("rise").group_by("setup", "task", maintain_order=True).agg(pl.col("rise").mean())
    setups = means["setup"].unique(maintain_order=True)
    place = pl.col("setup").replace_strict({name: number for number, name in enumerate(setups)})
    return by_catalogue(means.filter(pl.col("rise") > RISING)).sort(place, maintain_order=True)


def undertrained_in_words(rising: pl.DataFrame) -> str:
    """The table in words: `STL (ner +8.2, dep +5.1); MTL-3 (dep +4.0)`."""
    by_setup: dict[str, list[str]] = {}
    for setup, task, rise in rising.iter_rows():
        by_setup.setdefault(setup, []).append(f"{task} {signed(rise)}")
    return "; ".join(f"{setup} ({', '.join(tasks)})" for setup, tasks in by_setup.items())


NONE = "–"


def number(value: float | int | None, decimals: int = 1, scale: float | int = 1) -> str:
    """A number with these decimals and a true minus sign; a dash if it is not defined."""
    if value is None or not math.isfinite(value):
        return NONE
    text = f"{scale * value:,.{decimals}f}"
    return text.lstrip("-") if not text.strip("-0.") else text.replace("-", "\N{MINUS SIGN}")


def signed(value: float | int | None, decimals: int = 1, scale: float | int = 1) -> str:
    """As `number`, also with a plus sign; a number that rounds to zero has no sign."""
    text = number(value, decimals, scale)
    return text if text == NONE or text[0] == "\N{MINUS SIGN}" or not text.strip("0.") else f"+{text}"


def sort_key(value: float | int | str | None) -> str:
    """What a table is sorted by: a number with six digits, a text unchanged, nothing if not known."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def number_or_text(value: float | str | None) -> str:
    """A number with four significant digits, a text unchanged, a dash if not known."""
    if value is None:
        return NONE
    return f"{value:.4g}".replace("-", "\N{MINUS SIGN}") if isinstance(value, float) else str(value)


def chance(value: float | None) -> str:
    """A probability with three decimals, or its order of magnitude."""
    if value is None or not math.isfinite(value):
        return NONE
    if value >= 0.001:
        return f"{value:.3f}"
    return "<1e-12" if value < 1e-12 else f"{value:.0e}".replace("e-0", "e-")
