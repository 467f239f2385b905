"""What follows from a study's runs: figures, tables and the report, made of whatever is finished."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from mtl.config import TASK_NAMES
from mtl.drawing import Name, draw, save
from mtl.errors import InputError
from mtl.files import write_text
from mtl.reporting import gather
from mtl.study.claim import claimed
from mtl.study.config import StudyConfig
from mtl.study.folder import Job, StudyFolder, done
from mtl.study.tracking import log_study
from probes import tables
from probes.report.report import report

CHANNELS = 3
"""Runs in an RGB figure."""


def collect(study: StudyFolder, config: StudyConfig, console: Console) -> Path | None:
    """Write tables, figures and the report; returns the report's page, or `None` if nothing is finished."""
    with claimed(study.path / "collect.claim") as mine:
        if not mine:
            console.print("another process makes the report")
            return study.path / "report.html"
        return _collect(study, config, console)


def _collect(study: StudyFolder, config: StudyConfig, console: Console) -> Path | None:
    finished = [job for job in study.jobs() if done(job, study.last_progress(job.name))]
    if not finished:
        console.print("nothing is finished: no report")
        return None
    scores: dict[str, str] = {task: getattr(config.train, task).score for task in TASK_NAMES}
    drawn = report(gather(study.path, config.split, scores))
    for name, table in drawn.tables.items():
        for form in tables.FORMATS:
            path = study.path / "tables" / f"{name}.{form}"
            path.parent.mkdir(exist_ok=True)
            tables.write(table, path, form)
    figures = _figures(study, finished, config, console)
    page = study.path / "report.html"
    write_text(page, drawn.html)
    for note in drawn.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    if drawn.verdict:
        console.print(f"competition: {drawn.verdict}", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"wrote {len(drawn.tables)} tables to {study.path / 'tables'} and {figures} figures to "
        f"{study.path / 'figures'}",
        highlight=False,
        soft_wrap=True,
    )
    log_study(study.path, config, drawn.tables, page)
    return page


def _figures(study: StudyFolder, finished: list[Job], config: StudyConfig, console: Console) -> int:
    """Draw all that the finished runs are enough for; returns the number of figures."""
    count = 0
    for stem, name, folders, tasks in _wanted(study, finished):
        try:
            drawn = draw(name, folders, tasks, config.split)
        except (InputError, ValueError) as error:
            console.print(f"no figure {stem}: {error}", highlight=False, markup=False, soft_wrap=True)
            continue
        for form in ("pdf", "png"):
            save(drawn, study.path / "figures" / f"{stem}.{form}", tables=False)
        count += 1
    return count


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
