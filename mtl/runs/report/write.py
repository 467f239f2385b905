"""Write a folder's report (page, tables, figures), and archive files that only an earlier report had."""

from __future__ import annotations

import fnmatch
import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from mtl.errors import InputError
from mtl.files import whole_file, write_json, write_text
from mtl.probes.figures.prediction import prediction_dots
from mtl.probes.report.report import BY_SETUP, report
from mtl.probes.tables import table_files as tables
from mtl.runs.evidence import evidence, page_parts
from mtl.runs.figures.drawn import FigureWithTables, save
from mtl.tasks.in_words import counted
from mtl.workers.lease import lease

if TYPE_CHECKING:
    from rich.console import Console

    from mtl.probes.report.claims import ClaimingSetup
    from mtl.probes.report.data import ReportData

PAGES = ("report.html", "answers.json")
FORMS = ("pdf", "png")
"""Formats of the figures' files."""
OURS = {
    "tables": (
        "runs.*", "scores.*", "scores-by-setup.*", "probes.*", "label-tests.*", "trials.*",
        "learning-curves.*", "heads-kept.*", "choices.*", "claims.*", "pruning-curves.*", "pruning-kinds.*",
        "head-worth.*", "prediction.*", "agreement.*", "correlation-*", "overlap-*",
        *(name for piece in evidence().values() for name in piece.tables),
    ),
    "figures": (
        "rgb-*", "grey-*", "correlation-*", "heads-kept.*", "labels-*", "parallel-coordinates.*",
        "prediction.*", "curve.*", "curve-kinds.*",
        *(f"{name}.*" for piece in evidence().values() if piece.of_study for name in piece.figures),
    ),
}  # fmt: skip
"""Names of the report's tables and figures; other files beside them are not touched."""


def only_reporter(folder: Path) -> AbstractContextManager[bool]:
    """The lease on the folder's report; yields whether this process holds it."""
    return lease(folder / "report.lease")


def run_report(
    folder: Path,
    data: ReportData,
    figures: Mapping[str, Callable[[], FigureWithTables]],
    console: Console,
    claims: ClaimingSetup | None = None,
) -> Mapping[str, pl.DataFrame]:
    """Write `report.html`, `answers.json`, `tables/` and `figures/`; returns the tables by file name.

    `figures` has a function for each figure, by file name without suffix. The figure of what predicts
    ablation is drawn from the page's own table. A figure that cannot be drawn is left out, with a line that
    says so.
    """
    made = report(data, claims, page_parts())
    if "prediction" in made.tables:
        figures = {**figures, "prediction": partial(_prediction, made.tables["prediction"])}
    written = {folder / name for name in PAGES}
    for name, table in made.tables.items():
        for form in tables.FORMATS:
            path = folder / "tables" / f"{name}.{form}"
            with whole_file(path) as temporary:
                tables.write(made.printed.get(name, table) if form == "tex" else table, temporary, form)
            written.add(path)
    if BY_SETUP in made.printed:
        path = folder / "tables" / f"{BY_SETUP}.md"
        write_text(path, tables.markdown(made.printed[BY_SETUP]))
        written.add(path)
    drawn, on_figures = 0, list[str]()
    for stem, draw in figures.items():
        try:
            figure = draw()
        except (InputError, ValueError, KeyError, pl.exceptions.PolarsError) as error:  # a damaged file
            console.print(f"no figure {stem}: {error}", soft_wrap=True)
            continue
        for kind in FORMS:
            written.update(save(figure, folder / "figures" / f"{stem}.{kind}", tables=False))
        on_figures += [f"note: figure {stem}: {note}" for note in figure.notes if note not in made.notes]
        drawn += 1
    write_text(folder / "report.html", made.html)
    write_json(folder / "answers.json", made.record())
    archive_report(folder, console, written)
    for line in (*made.lines(), *on_figures):
        console.print(line, soft_wrap=True)
    console.print(
        f"wrote {counted(len(made.tables), 'table')} to {folder / 'tables'} and "
        f"{counted(drawn, 'figure')} to {folder / 'figures'}",
        soft_wrap=True,
    )
    return made.tables


def _prediction(table: pl.DataFrame) -> FigureWithTables:
    """A figure of the page's table, so that both have the same numbers."""
    return FigureWithTables(prediction_dots(table), (), {"": table})


def archive_report(folder: Path, console: Console, but: frozenset[Path] | set[Path] = frozenset()) -> None:
    """Move the report's files in a folder, except those in `but`, to its `.replaced`."""
    stale = [
        path
        for kind, names in OURS.items()
        for path in sorted((folder / kind).glob("*"))
        if path not in but and any(fnmatch.fnmatch(path.name, name) for name in names)
    ]
    stale += [page for name in PAGES if (page := folder / name).is_file() and page not in but]
    if not stale:
        return
    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    # Two archives made within one second need two places.
    places = (folder / ".replaced" / f"report-{now}-{number}" for number in itertools.count(1))
    archive = next(place for place in places if not place.exists())
    for path in stale:
        archived = archive / path.relative_to(folder)
        archived.parent.mkdir(parents=True, exist_ok=True)
        path.rename(archived)
    console.print(
        f"archived {counted(len(stale), 'file')} of an earlier report that these runs have no data for, "
        f"in {archive}",
        soft_wrap=True,
    )
