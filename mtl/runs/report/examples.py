"""The examples that probing wrote into the folders of runs."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from mtl.probes.report.data import RunExamples
from mtl.probes.tables import examples_file
from mtl.probes.tables.heads_table import runs_of


def examples_of(heads: pl.DataFrame | None, notes: list[str]) -> tuple[RunExamples, ...]:
    """The examples of the first run with any, for each regime and task; damaged files are noted.

    `heads` has the columns regime, run, seed and task.
    """
    if heads is None:
        return ()
    of_tasks = runs_of(heads).filter(pl.col("task") != "")
    with_files = {run for run in of_tasks["run"].unique() if (Path(run) / examples_file.FILE).is_file()}
    known = of_tasks.filter(pl.col("run").is_in(sorted(with_files))).sort("seed", maintain_order=True)
    first = known.unique(["regime", "task"], keep="first", maintain_order=True)
    found = []
    for (regime, run), rows in first.group_by("regime", "run", maintain_order=True):
        try:
            read = examples_file.read(Path(str(run)) / examples_file.FILE)
        except ValueError as error:
            notes.append(f"{error}: left out")
            continue
        found.append(RunExamples(str(regime), str(run), tuple(rows["task"]), read))
    return tuple(found)
