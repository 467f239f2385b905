"""The folder of a study whose runs are made up, as if it had been carried out."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import yaml

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig
from mtl.study.config import GridBlock, StudyConfig
from mtl.study.grid import planned
from mtl.study.jobs import JobProgress, StudyFolder
from tests.mtl.studies import Study

TASKS = ("pos", "dep", "srl")
SINGLE = GridBlock(("STL", "MTL"), ("none",))
DYNAMIC = GridBlock(("STL",), ("dynamic",))
STATIC = GridBlock(("STL",), ("static",))
PER_TASK = GridBlock(("MTL",), ("dynamic_per_task",))


def config(*grid: GridBlock, **study) -> StudyConfig:
    return StudyConfig(grid=grid, train=TrainConfig(tasks=TASKS), **study)


def carry_out(root: Path, study: StudyConfig, but: str | None = None) -> StudyFolder:
    """Make the missing runs, except those of one kind, and move unwanted ones away."""
    folder, runs = StudyFolder(root), planned(study, root)
    made = Study(root)
    if not (root / "static").exists():
        made.static()
    for name in {job.name for job in folder.jobs()} - {run.name for run in runs}:
        folder.remove_job(name)
        shutil.rmtree(folder.run(name), ignore_errors=True)
    for number, run in enumerate(runs):
        made_of = {"configuration": str(run.settings)}
        folder.write_job(dataclasses.replace(run, number=number, made_of=made_of))
        if run.grid_cell == but:
            continue
        folder.write_progress(run.name, JobProgress("finished", made_of=made_of))
        if not folder.run(run.name).exists():
            gates = {"scope": run.config.gates.scope, "target_open": run.config.gates.target_open}
            made.run(
                run.config.tasks, run.config.seed, pruning=run.config.pruning, name=run.name,
                scope=run.config.gates.scope, gates=gates, probe=run.probes is not None,
            )  # fmt: skip
    folder.study_file.write_text(yaml.safe_dump(plain(dataclasses.asdict(study)), sort_keys=False))
    return folder
