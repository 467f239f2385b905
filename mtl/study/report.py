"""What follows from a study's runs: figures, tables and the report, made of whatever is finished."""

from __future__ import annotations

import fnmatch
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
from rich.console import Console

from mtl.config.schema import TASK_NAMES
from mtl.errors import InputError
from mtl.files import whole_file, write_text
from mtl.runs.figures import Name, draw, save
from mtl.runs.gather import gather
from mtl.study.config import StudyConfig
from mtl.study.folder import StudyFolder
from mtl.study.job import Job, done
from mtl.study.primary_setup import fixed_claims
from mtl.study.wandb_study import log_study
from mtl.workers.lease import lease
from probes import table_files as tables
from probes.report.report import report

FORMS = ("pdf", "png")
"""Of figures."""
CHANNELS = 3
"""Runs in an RGB figure."""
OURS = {
    "tables": (
        *("runs.*", "scores.*", "probes.*", "labels.*", "label-tests.*"),
        *("correlation-*", "overlap-*", "competition-*"),
    ),
    "figures": ("rgb-*", "grey-*", "correlation-*", "heads-kept.*", "labels-*"),
}
"""What the report's tables and figures are called; whatever else somebody put beside them is not touched."""


def collect(study: StudyFolder, config: StudyConfig, console: Console) -> Path | None:
    """Write tables, figures and the report; returns the report's page, or `None` if nothing is finished."""
    with lease(study.path / "report.lease") as mine:
        if not mine:
            console.print("another process makes the report")
            return study.path / "report.html"
        return _collect(study, config, console)


def _collect(study: StudyFolder, config: StudyConfig, console: Console) -> Path | None:
    finished = [job for job in study.jobs() if done(job, study.last_progress(job.name))]
    if not finished:
        console.print("nothing is finished: no report")
        _put_away(study, set(), console)
        return None
    scores: dict[str, str] = {task: getattr(config.train, task).score for task in TASK_NAMES}
    evidence = gather(study.path, config.split, scores)
    drawn = report(evidence, fixed_claims(config, study.path, evidence))
    page = study.path / "report.html"
    written = {page}
    for name, table in drawn.tables.items():
        for form in tables.FORMATS:
            path = study.path / "tables" / f"{name}.{form}"
            with whole_file(path) as temporary:
                tables.write(table, temporary, form)
            written.add(path)
    figures = _figures(study, finished, config, console)
    write_text(page, drawn.html)
    _put_away(study, written | set(figures), console)
    for line in drawn.said():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"wrote {len(drawn.tables)} tables to {study.path / 'tables'} and {len(figures) // len(FORMS)} "
        f"figures to {study.path / 'figures'}",
        highlight=False,
        soft_wrap=True,
    )
    log_study(study.path, config, drawn.tables, page)
    return page


def _put_away(study: StudyFolder, written: set[Path], console: Console) -> None:
    """Move what an earlier report showed and this one does not to where replaced runs are."""
    stale = [
        path
        for kind, names in OURS.items()
        for path in sorted((study.path / kind).glob("*"))
        if path not in written and any(fnmatch.fnmatch(path.name, name) for name in names)
    ]
    stale += [page for page in [study.path / "report.html"] if page.is_file() and page not in written]
    if not stale:
        return
    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    # Another within the same second must not take its place.
    tries = (study.path / ".replaced" / f"report-{now}-{number}" for number in itertools.count(1))
    place = next(each for each in tries if not each.exists())
    for path in stale:
        to = place / path.relative_to(study.path)
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)
    console.print(
        f"put away {len(stale)} files of an earlier report that these runs do not give: they are in {place}",
        highlight=False,
        soft_wrap=True,
    )


def _figures(study: StudyFolder, finished: list[Job], config: StudyConfig, console: Console) -> list[Path]:
    """Draw all that the finished runs are enough for; returns the files."""
    written = []
    for stem, name, folders, tasks in _wanted(study, finished):
        try:
            drawn = draw(name, folders, tasks, config.split)
        except (InputError, ValueError, KeyError, pl.exceptions.PolarsError) as error:  # of a damaged file
            console.print(f"no figure {stem}: {error}", highlight=False, markup=False, soft_wrap=True)
            continue
        for form in FORMS:
            written += save(drawn, study.path / "figures" / f"{stem}.{form}", tables=False)
    return written


def _wanted(
    study: StudyFolder, finished: list[Job]
) -> Iterator[tuple[str, Name, list[Path], tuple[str, ...]]]:
    """Every figure's file name, kind, runs and tasks."""
    masked: dict[tuple[str, tuple[str, ...]], list[Path]] = {}
    probed: dict[str, list[Path]] = {}
    for job in finished:
        tasks = tuple(job.config.get("tasks", ()))
        if job.config and job.config["pruning"] != "none":
            masked.setdefault((job.setup, tasks), []).append(study.run(job.name))
        if job.probe is not None:
            for task in tasks or TASK_NAMES:
                probed.setdefault(task, []).append(study.run(job.name))
    for (setup, tasks), folders in masked.items():
        of = f"{'+'.join(tasks)} {setup.split(' ', 1)[-1]}".replace(" ", "-")
        if len(folders) >= CHANNELS:
            per_task = tasks if "per_task" in setup else ()
            if len(per_task) == 0:
                yield f"rgb-{of}", "rgb", folders[:CHANNELS], ()
            for task in per_task:
                yield f"rgb-{of}-{task}", "rgb", folders[:CHANNELS], (task,)
    by_masks: dict[str, list[Path]] = {}
    for (setup, _), folders in masked.items():
        by_masks.setdefault(setup, []).extend(folders)
    for setup, folders in by_masks.items():
        name = setup.replace(" ", "-")
        yield f"grey-{name}", "grey", folders, ()
        sets = {tasks for each, tasks in masked if each == setup}
        if len(sets) > 1 or "per_task" in setup:
            yield f"correlation-{name}", "correlation", folders, ()
    runs = [study.run(job.name) for job in finished if job.config]
    if masked:
        yield "heads-kept", "heads-kept", runs, ()
    for task, folders in probed.items():
        if len(folders) > 1:
            yield f"labels-{task}", "labels", folders, (task,)
