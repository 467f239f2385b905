"""A study's report: the page, and the figures for which there are enough finished runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from rich.console import Console

from mtl.config.instances import kind_of, on_words
from mtl.probes.appearance import appearing
from mtl.runs.evidence import evidence
from mtl.runs.figures.table import FigureName, draw
from mtl.runs.report.gather import gather
from mtl.runs.report.write import archive_report, only_reporter, run_report
from mtl.study.claiming_setup import fixed_claims, only_claiming_seeds
from mtl.study.config import StudyConfig
from mtl.study.jobs.folder import StudyFolder
from mtl.study.jobs.job import Job
from mtl.study.wandb_study import log_study
from mtl.workers.collector import without_collector

CHANNELS = 3
"""Runs in an RGB figure, one for each channel."""


def collect(study: StudyFolder, config: StudyConfig, console: Console) -> Path | None:
    """Write tables, figures and the report; returns the report's page, or `None` if no job is finished."""
    page = study.path / "report.html"
    with only_reporter(study.path) as mine, without_collector(), appearing(config.appearance) as shown:
        if not mine:
            console.print("another process is already writing the report")
            return page
        snapshot = study.snapshot()
        finished = [job for name, job in snapshot.jobs.items() if snapshot.state(name) == "finished"]
        if not finished:
            console.print("nothing is finished: no report")
            archive_report(study.path, console)
            return None
        scores = config.train.main_scores()
        data = gather(study.path, config.split, scores, not_to_probe=study.not_to_probe())
        figures = {
            stem: partial(draw, name, folders, tasks, config.split)
            for stem, name, folders, tasks in _figures(study, finished)
        }
        claiming = fixed_claims(config, study.path, data)
        data = only_claiming_seeds(config, data, claiming)
        for piece in evidence().values():
            drawn = {} if piece.of_study is None else resolve_name(piece.of_study)(data, claiming)
            figures |= {name: partial(draw, name, runs, split=config.split) for name, runs in drawn.items()}
        if data.pruning is not None:
            with_curves = [Path(run) for run in data.pruning.points["run"].unique(maintain_order=True)]
            figures["curve"] = partial(draw, "curve", with_curves, split=config.split)
            if data.pruning.kinds is not None:
                figures["curve-kinds"] = partial(draw, "curve-kinds", with_curves, split=config.split)
        tables = run_report(study.path, data, figures, console, claiming)
        for fault in shown.faults("the report"):
            console.print(f"note: appearance: {fault}", soft_wrap=True)
        log_study(study.path, config, tables, page)
        return page


def _figures(
    study: StudyFolder, finished: Sequence[Job]
) -> Iterator[tuple[str, FigureName, list[Path], tuple[str, ...]]]:
    """The file name, kind, runs and tasks of every figure."""
    masked: dict[str, dict[tuple[str, ...], list[Path]]] = {}
    probed: dict[str, list[Path]] = {}
    per_task: set[str] = set()
    for job in finished:
        run = study.run(job.name)
        if job.trained and job.config.pruning != "none":
            masked.setdefault(job.grid_cell, {}).setdefault(job.config.tasks, []).append(run)
            if job.config.gates.scope == "per_task":
                per_task.add(job.grid_cell)
        if job.probes is not None:
            kinds = {name: kind_of(name, job.config.instances) for name in job.config.tasks}
            for task in (name for name, kind in kinds.items() if on_words([kind])):
                probed.setdefault(task, []).append(run)
    for cell, by_tasks in masked.items():
        for tasks, folders in by_tasks.items():
            title = f"{'+'.join(tasks)} {cell.split(' ', 1)[-1]}".replace(" ", "-")
            for mask in [(task,) for task in tasks] if cell in per_task else [()]:
                if len(folders) >= CHANNELS:
                    yield "-".join(["rgb", title, *mask]), "rgb", folders[:CHANNELS], mask
        name, every = cell.replace(" ", "-"), [run for folders in by_tasks.values() for run in folders]
        yield f"grey-{name}", "grey", every, ()
        if len(by_tasks) > 1 or cell in per_task:
            yield f"correlation-{name}", "correlation", every, ()
    if masked:
        yield "heads-kept", "heads-kept", [study.run(job.name) for job in finished if job.trained], ()
    for task, folders in probed.items():
        if len(folders) > 1:
            yield f"labels-{task}", "labels", folders, (task,)
