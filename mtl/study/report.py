"""The report of a study: its claims and figures."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import polars as pl

from mtl.config.effective import plain
from mtl.config.instances import kind_of, on_words
from mtl.config.parse import read_configuration
from mtl.config.schema import ScoredSplit, TrainConfig
from mtl.errors import InputError
from mtl.probes.report.data import ClaimingSetup, ReportData
from mtl.runs.figures.table import FigureName, draw
from mtl.runs.folder.wandb_view import log_report, wandb_mode
from mtl.runs.report.gather import Draw, ReportSource, of_evidence
from mtl.study.config import KINDS, GridBlock, Masks, StudyConfig, task_sets
from mtl.study.grid import planned
from mtl.study.jobs import Job, StudyFolder
from mtl.tasks.in_words import counted

RULE = "fixed beforehand as those of the first block with masks in the study's file"
CHANNELS = 3
"""Runs in an RGB figure, one for each channel."""


@dataclass(frozen=True)
class StudySource(ReportSource):
    """A study: its file says split, claims and appearance, and its jobs say which figures there are."""

    study: StudyConfig = field(default_factory=StudyConfig)
    done: Sequence[Job] = ()
    """The finished jobs."""

    def claiming(self, data: ReportData) -> ClaimingSetup | None:
        """The setup whose masks are claims; `None` if no block of the study's file learns such masks.

        If the setup has no runs yet, it has its name in the file; no other setup replaces it.
        """
        runs = _first(self.study, self.folder)
        if not runs:
            return None
        folders = {f"runs/{run.name}" for run in runs}
        setups = {row["setup"] for row in data.runs.iter_rows(named=True) if row["run"] in folders}
        return ClaimingSetup(min(setups, default=runs[0].grid_cell), RULE)

    def with_claims(self, data: ReportData, claiming: ClaimingSetup | None) -> ReportData:
        """The data without masks of the claiming setup whose seeds are not in `claims.seeds`."""
        seeds = self.study.claims.seeds
        if seeds is None or claiming is None or data.gates is None:
            return data
        is_claim, is_other = pl.col("setup") == claiming.setup, ~pl.col("seed").is_in(seeds)
        gates = data.gates.filter(~(is_claim & is_other))
        left_out = data.gates.filter(is_claim & is_other)["seed"].n_unique()
        note = f"claims of {claiming.setup} are those of seeds {', '.join(map(str, seeds))}"
        if left_out:
            note += f": masks of {counted(left_out, 'other seed')} are left out"
        return dataclasses.replace(data, gates=None if gates.is_empty() else gates, notes=(*data.notes, note))

    def figures(
        self, data: ReportData, split: ScoredSplit, claiming: ClaimingSetup | None
    ) -> Mapping[str, Draw]:
        """The figures of the finished jobs and of all pieces of evidence, by file name without suffix."""
        own = {
            stem: partial(draw, name, folders, tasks, split)
            for stem, name, folders, tasks in _figures(StudyFolder(self.folder), self.done)
        }
        return own | of_evidence(data, split, claiming)

    def keep(self, tables: Mapping[str, pl.DataFrame], page: Path) -> None:
        """Log the report to W&B."""
        log_report(self.folder, self.train, plain(dataclasses.asdict(self.study)), tables, page)

    def wandb_config(self) -> TrainConfig:
        """The study's own settings."""
        if wandb_mode(self.train) == "disabled":
            file = self.folder / "study.yaml"
            raise InputError(f"W&B is off in {file} (train.wandb.mode): no report is logged")
        return self.train


def study_source(folder: Path) -> StudySource:
    """The study in a folder, as last planned."""
    config, study = read_configuration(StudyConfig, folder / "study.yaml"), StudyFolder(folder)
    snapshot = study.snapshot()
    seeds: dict[str, set[int]] = {}
    for job in snapshot.jobs.values():
        seeds.setdefault(job.grid_cell, set()).add(job.config.seed)
    finished = [job for name, job in snapshot.jobs.items() if snapshot.state(name) == "finished"]
    return StudySource(
        folder, config.train, config.split, config.appearance, bool(finished), study.not_to_probe(),
        {study.run(name): seeds[job.grid_cell] for name, job in snapshot.jobs.items()},
        study=config, done=finished,
    )  # fmt: skip


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
            title = _in_file_name(f"{'+'.join(tasks)}, {cell.partition(', ')[2]}")
            for mask in [(task,) for task in tasks] if cell in per_task else [()]:
                if len(folders) >= CHANNELS:
                    yield "-".join(["rgb", title, *mask]), "rgb", folders[:CHANNELS], mask
        name, every = _in_file_name(cell), [run for folders in by_tasks.values() for run in folders]
        yield f"grey-{name}", "grey", every, ()
        if len(by_tasks) > 1 or cell in per_task:
            yield f"correlation-{name}", "correlation", every, ()
    if masked:
        yield "heads-kept", "heads-kept", [study.run(job.name) for job in finished if job.trained], ()
    for task, folders in probed.items():
        if len(folders) > 1:
            yield f"labels-{task}", "labels", folders, (task,)


def _in_file_name(cell: str) -> str:
    return cell.replace(", ", "-").replace(" ", "-")


def _first(study: StudyConfig, folder: Path) -> list[Job]:
    """The runs of the first block whose masks are claims: of several tasks alone, or of one set of tasks with
    a mask per task; empty if there is no such block."""
    for block in study.grid:
        alone = tuple(
            setup for setup in block.setups if all(len(tasks) == 1 for tasks in task_sets(setup, study))
        )
        for setup, masks in itertools.product(block.setups, block.masks):
            if not KINDS[masks].learned:
                continue  # masks from a file or a draw do not show which heads a task wants
            if setup in alone:
                runs = _masked(study, folder, block, alone, masks)
                if len({run.config.tasks for run in runs}) > 1:
                    return runs
            elif KINDS[masks].per_task and len(task_sets(setup, study)) == 1:
                return _masked(study, folder, block, (setup,), masks)
    return []


def _masked(
    study: StudyConfig, folder: Path, block: GridBlock, setups: tuple[str, ...], masks: Masks
) -> list[Job]:
    """The runs of a block with these masks."""
    part = dataclasses.replace(block, setups=setups, masks=(masks,))
    runs = planned(dataclasses.replace(study, grid=(part,)), folder)
    return [run for run in runs if run.masks == masks]
