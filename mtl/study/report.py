"""A study's report: the figures for which it has enough finished runs, and the primary comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import polars as pl
from rich.console import Console

from mtl.config.schema import DEFAULT_TASKS
from mtl.probes.report.claims import PrimarySetup
from mtl.probes.report.data import ReportData
from mtl.probes.statistics.head_values import ABLATION
from mtl.runs.figures.table import FigureName, draw
from mtl.runs.report.gather import gather
from mtl.runs.report.write import archive_report, only_reporter, run_report
from mtl.study.config import StudyConfig
from mtl.study.folder import StudyFolder
from mtl.study.job import Job
from mtl.study.primary_setup import fixed_claims, only_claiming_seeds
from mtl.study.wandb_study import log_study

CHANNELS = 3
"""Runs in an RGB figure: one for each channel."""


def collect(study: StudyFolder, config: StudyConfig, console: Console) -> Path | None:
    """Write tables, figures and the report; returns the report's page, or `None` if nothing is finished."""
    page = study.path / "report.html"
    with only_reporter(study.path) as mine:
        if not mine:
            console.print("another process makes the report")
            return page
        snapshot = study.snapshot()
        finished = [job for name, job in snapshot.jobs.items() if snapshot.state(name) == "finished"]
        if not finished:
            console.print("nothing is finished: no report")
            archive_report(study.path, console)
            return None
        scores = config.train.main_figures()
        data = gather(study.path, config.split, scores, not_to_probe=study.not_to_probe())
        figures = {
            stem: partial(draw, name, folders, tasks, config.split)
            for stem, name, folders, tasks in _figures(study, finished)
        }
        if data.worth is not None and {ABLATION} < set(data.worth["measure"]):
            runs = [study.run(job.name) for job in finished if job.config]
            figures["prediction"] = partial(draw, "prediction", runs)
        primary = fixed_claims(config, study.path, data)
        data = only_claiming_seeds(config, data, primary)
        of_contest = _of_contest(data, primary)
        if of_contest:
            figures |= {name: partial(draw, name, of_contest) for name in ("contest", "forest")}
            if data.cosines is not None:
                figures["conflict"] = partial(draw, "conflict", of_contest)
        if data.forced is not None:
            figures["dose"] = partial(draw, "dose", _runs_in(data.forced), split=config.split)
        if data.pruning is not None:
            with_curves = _runs_in(data.pruning.points)
            figures["curve"] = partial(draw, "curve", with_curves, split=config.split)
            if data.pruning.kinds is not None:
                figures["curve-kinds"] = partial(draw, "curve-kinds", with_curves, split=config.split)
        if data.remedies is not None:
            figures["recovery"] = partial(draw, "recovery", _runs_in(data.remedies), split=config.split)
        tables = run_report(study.path, data, figures, console, primary)
        log_study(study.path, config, tables, page)
        return page


def _runs_in(table: pl.DataFrame) -> list[Path]:
    return [Path(run) for run in table["run"].unique(maintain_order=True)]


def _of_contest(data: ReportData, primary: PrimarySetup | None) -> list[Path]:
    """The runs of the contest's figures: masked runs of single tasks (the primary setup's first), then pairs.

    Empty where claims, pairs or the worth of the pairs' heads are missing.
    """
    if data.gates is None or data.pairs is None or data.worth is None:
        return []
    if data.worth.filter(pl.col("run").is_in(set(data.pairs["run"]))).is_empty():
        return []
    alone = [setup.name for setup in data.setups if setup.single]
    masked = (
        data.gates.filter(pl.col("setup").is_in(alone)).select("run", "setup").unique(maintain_order=True)
    )
    first = masked["setup"] == (primary.setup if primary is not None else "")
    folders = [*masked.filter(first)["run"], *masked.filter(~first)["run"]]
    return [Path(run) for run in [*folders, *data.pairs["run"].unique(maintain_order=True)] if folders]


def _figures(
    study: StudyFolder, finished: Sequence[Job]
) -> Iterator[tuple[str, FigureName, list[Path], tuple[str, ...]]]:
    """Every figure's file name, kind, runs and tasks."""
    masked: dict[tuple[str, tuple[str, ...]], list[Path]] = {}
    probed: dict[str, list[Path]] = {}
    per_task: set[str] = set()
    for job in finished:
        tasks = tuple(job.config.get("tasks", ()))
        if job.config and job.config["pruning"] != "none":
            masked.setdefault((job.grid_cell, tasks), []).append(study.run(job.name))
            if job.config["gates"]["scope"] == "per_task":
                per_task.add(job.grid_cell)
        if job.probe is not None:
            for task in (name for name in tasks or DEFAULT_TASKS if name in DEFAULT_TASKS):
                probed.setdefault(task, []).append(study.run(job.name))
    for (cell, tasks), folders in masked.items():
        title = f"{'+'.join(tasks)} {cell.split(' ', 1)[-1]}".replace(" ", "-")
        if len(folders) >= CHANNELS:
            if cell not in per_task:
                yield f"rgb-{title}", "rgb", folders[:CHANNELS], ()
            for task in tasks if cell in per_task else ():
                yield f"rgb-{title}-{task}", "rgb", folders[:CHANNELS], (task,)
    by_cell: dict[str, list[Path]] = {}
    for (cell, _), folders in masked.items():
        by_cell.setdefault(cell, []).extend(folders)
    for cell, folders in by_cell.items():
        name = cell.replace(" ", "-")
        yield f"grey-{name}", "grey", folders, ()
        sets = {tasks for other, tasks in masked if other == cell}
        if len(sets) > 1 or cell in per_task:
            yield f"correlation-{name}", "correlation", folders, ()
    runs = [study.run(job.name) for job in finished if job.config]
    if masked:
        yield "heads-kept", "heads-kept", runs, ()
    for task, folders in probed.items():
        if len(folders) > 1:
            yield f"labels-{task}", "labels", folders, (task,)
