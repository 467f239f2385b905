"""Write the report of a folder (page, answers, tables, figures), and archive what only an earlier one had.

This is the only writer of these files: all of them have the same split, claims and appearance.
"""

from __future__ import annotations

import fnmatch
import itertools
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from mtl.config.effective import plain
from mtl.config.schema import ScoredSplit
from mtl.errors import InputError, did_you_mean
from mtl.files import whole_file, write_json, write_text
from mtl.probes.appearance import Appearance, ShownNames, appearing, arranged
from mtl.probes.figures.scores import prediction_dots
from mtl.probes.report.data import ClaimingSetup, ReportData, claim_sets
from mtl.probes.report.report import BY_SETUP, Page, masks_by_setup, report_page
from mtl.probes.statistics.head_values import PREDICTION_UNITS as PREDICTION_UNITS
from mtl.probes.tables import table_files as tables
from mtl.probes.tables.table_files import About
from mtl.runs.figures.drawn import FigureWithTables, save
from mtl.runs.figures.table import FIGURES, evidence, page_parts
from mtl.runs.folder.wandb_view import log_report
from mtl.runs.report.gather import Draw, ReportSource, gather, source_of
from mtl.tasks.catalogue import in_order_of_catalogue
from mtl.tasks.in_words import counted
from mtl.workers.collector import without_collector
from mtl.workers.lease import lease

if TYPE_CHECKING:
    from rich.console import Console

PAGES = ("report.html", "answers.json")
FORMS = ("pdf", "png")
"""Formats of the figures' files."""
OURS = (
    *(
        f"tables/{name}"
        for name in (
            "runs.*", "scores.*", "scores-by-setup.*", "probes.*", "label-tests.*", "learning-curves.*",
            "heads-kept.*", "choices.*", "claims.*", "head-worth.*",
            "prediction.*", "agreement.*", "correlation-*", "overlap-*",
            *(name for piece in evidence().values() for name in piece.tables),
        )
    ),
    *(
        f"figures/{name}"
        for name in (
            "rgb-*", "grey-*", "correlation-*", "heads-kept.*", "labels-*", "prediction.*",
            *(f"{name}.*" for piece in evidence().values() if piece.of_report for name in piece.figures),
        )
    ),
)  # fmt: skip
"""Names of the report's tables and figures; other files beside them are not touched."""


def write_report(
    folder: Path,
    console: Console,
    *,
    split: ScoredSplit | None = None,
    claims: str | None = None,
    appearance: Appearance | None = None,
    out: Path | None = None,
    json_out: Path | None = None,
    at_end: bool = False,
    log: bool = False,
) -> Path | None:
    """Write the report of a folder with runs; returns its page.

    Page, answers, tables and figures are always written together, so that they have the same split, claims
    and appearance. By default, these are those of the folder's source (`source_of`). With `out`, another file
    than the folder's page, only the page is written. `at_end` is for the commands that made the runs: if no
    run is finished, they archive an earlier report and get `None`. With `log`, the report is logged to W&B.
    """
    page = folder / "report.html"
    alone = (out is not None and out.resolve() != page.resolve()) or not folder.is_dir()
    held = nullcontext(True) if alone else only_reporter(folder)
    with held as mine, without_collector():
        if not mine and at_end:
            console.print("another process is already writing the report")
            return page
        if not mine:
            raise InputError(f"another process is writing the report of {folder}: try again, or give --out")
        source = source_of(folder)
        if at_end and not source.finished:
            print_lines(
                ("nothing is finished: no report", *(f"note: {note}" for note in source.notes)), console
            )
            archive_report(source, console)
            return None
        if at_end:
            console.print("writing the report")
        train = source.wandb_config() if log else None
        if appearance is None or appearance == Appearance():
            appearance = source.appearance
        with appearing(appearance, source.train.tasks) as shown:
            made, figures = made_report(source, split or source.split, claims)
            tables: Mapping[str, pl.DataFrame] = {}
            if out is not None and alone:
                write_text(out, made.html)
                print_lines(made.lines((*shown.faults("the report"), *source.notes)), console)
            else:
                tables = write_files(source, made, figures, console, shown)
        if json_out is not None:
            write_json(json_out, made.record(source.notes))
        if at_end:
            source.keep(tables, page)
        if train is not None:
            print_lines([log_report(folder, train, plain(asdict(train)), tables, page)], console)
        return out or page


def made_report(
    source: ReportSource, split: ScoredSplit, claims: str | None = None
) -> tuple[Page, Mapping[str, Draw]]:
    """The page of a report, and its figures by file name; `claims` is the name of the claiming setup."""
    scores = source.train.main_scores()
    scores = {task: scores[task] for task in arranged(in_order_of_catalogue(scores))}
    data = gather(source.folder, split, scores, source.not_to_probe, source.asked, source.choose)
    claiming = source.claiming(data)
    if claims is not None:
        several = claim_sets(masks_by_setup(data)[0], data.setups)
        claiming = chosen_claims(claims, data, several, claiming)
    data = source.with_claims(data, claiming)
    figures = dict(source.figures(data, split, claiming))
    return report_page(data, claiming, source.parts(page_parts())), figures


def chosen_claims(
    name: str, evidence: ReportData, several: Mapping[str, object], fixed: ClaimingSetup | None
) -> ClaimingSetup:
    """The setup that `--claims` names; raises `InputError` if its masks cannot be claims.

    The keys of `several` are the setups with masks of several tasks; `fixed` is the source's own.
    """
    if name not in several:
        if not several:
            raise InputError(f"--claims={name}: no setup here has masks of several tasks")
        if name in {setup.name for setup in evidence.setups}:
            raise InputError(
                f"--claims={name} has no masks of several tasks; use one of {'; '.join(several)}"
            )
        completions = [setup for setup in several if setup.startswith(name)]
        nearest = f": did you mean '{completions[0]}'?" if completions else did_you_mean(name, several, "")
        known = f"{' There' if nearest else '; there'} are {'; '.join(several)}"
        raise InputError(f"unknown setup in --claims: '{name}'{nearest}{known}")
    if fixed is not None and fixed.setup == name:
        return fixed
    why = "chosen with --claims when this page was made, so that the corrected p is the one to be read"
    return ClaimingSetup(
        name, why if fixed is None else f"{why}; the folder's file fixes those of {fixed.setup}"
    )


def only_reporter(folder: Path) -> AbstractContextManager[bool]:
    """The lease on the folder's report; yields whether this process holds it."""
    return lease(folder / "report.lease")


def write_files(
    source: ReportSource, made: Page, figures: Mapping[str, Draw], console: Console, looks: ShownNames
) -> Mapping[str, pl.DataFrame]:
    """Write `report.html`, `answers.json`, `tables/` and `figures/`; returns the tables by file name.

    `figures` has a function for each figure, by file name without suffix. The figure of what predicts
    ablation is drawn from the page's own table. A figure that cannot be drawn is left out, with a note that
    says so. `looks` knows the faults of the appearance with which they are drawn.
    """
    folder = source.folder
    if not (folder / "answers.json").is_file():  # no report yet: these are a person's
        archive_report(source, console, {folder / name for name in PAGES})
    if "prediction" in made.tables:
        figures = {**figures, "prediction": partial(_prediction, made.tables["prediction"])}
    written = {folder / name for name in PAGES}
    for name, table in made.tables.items():
        about = made.about.get(name, About())
        for form in tables.FORMATS:
            path = folder / "tables" / f"{name}.{form}"
            shown = made.printed.get(name, table) if form == "tex" else table
            with whole_file(path) as temporary:
                tables.write_table_file(
                    shown, temporary, form, notes=about.notes, units=about.units, paper=about.paper
                )
            written.add(path)
    if BY_SETUP in made.printed:
        path, about = folder / "tables" / f"{BY_SETUP}.md", made.about[BY_SETUP]
        write_text(path, tables.markdown_table(made.printed[BY_SETUP], about.notes, about.units))
        written.add(path)
    drawn, failed, on_figures = 0, list[str](), list[str]()
    for stem, drawing in figures.items():
        try:
            figure = drawing()
        except (InputError, ValueError, KeyError, pl.exceptions.PolarsError) as error:  # a damaged file
            failed.append(f"no figure {stem}: {error}")
            continue
        on_figures += [f"figure {stem}: {note}" for note in figure.notes if note not in made.notes]
        if stem in FIGURES and "split" in FIGURES[stem].uses:
            figure = replace(figure, notes=(*figure.notes, f"scores on {made.split}"))
        for kind in FORMS:
            written.update(save(figure, folder / "figures" / f"{stem}.{kind}", tables=False))
        drawn += 1
    write_text(folder / "report.html", made.html)
    first = (*failed, *looks.faults("the report"), *source.notes)
    write_json(folder / "answers.json", made.record(first, on_figures))
    archive_report(source, console, written)
    print_lines(made.lines(first, on_figures, "on the page and in answers.json"), console)
    console.print(
        f"wrote {counted(len(made.tables), 'table')} to {folder / 'tables'} and "
        f"{counted(drawn, 'figure')} to {folder / 'figures'}",
        soft_wrap=True,
    )
    return made.tables


def print_lines(lines: Iterable[str], console: Console) -> None:
    """Print each line as it is, however long."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _prediction(table: pl.DataFrame) -> FigureWithTables:
    """A figure of the page's table, so that both have the same numbers."""
    return FigureWithTables(prediction_dots(table), (), {"": table}, units={"": PREDICTION_UNITS})


def archive_report(source: ReportSource, console: Console, but: Collection[Path] = ()) -> None:
    """Move the report's files in the folder, except those in `but`, to its `.replaced`."""
    folder, ours = source.folder, (*OURS, *source.files)
    stale = [
        path
        for kind in ("tables", "figures")
        for path in sorted((folder / kind).glob("*"))
        if path not in but and any(fnmatch.fnmatch(f"{kind}/{path.name}", name) for name in ours)
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
