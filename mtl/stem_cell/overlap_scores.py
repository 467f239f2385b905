"""Scores of pairs under fixed masks, beside how many heads the masks have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from mtl.heads.gate_file import read_gates
from mtl.probes.sites import KEYS
from mtl.probes.tables.gates_table import last_gates
from mtl.runs.compare.alike import comparable
from mtl.runs.compare.scores import scores_of
from mtl.runs.compare.settings import settings_of_run
from mtl.runs.folder.content import draw_of, place_now
from mtl.runs.folder.run import Run

MAY_DIFFER = ("gates.masks",)
"""What is compared: masks that have more or fewer heads in common."""
SCHEMA = pl.Schema(
    {
        "pair": pl.String,
        "overlap": pl.Int64,
        "draw": pl.Int64,
        "task": pl.String,
        "figure": pl.String,
        "score": pl.Float64,
        "heads": pl.Int64,
        "seed": pl.Int64,
        "run": pl.String,
    }
)
"""A row per run and task.

`overlap` is the number of heads that both masks of the run have open, `heads` that of the task's own mask;
`draw` is the number of the draw, null for masks that were not drawn; `figure` is the score's name.
"""


def overlap_scores(
    runs: Sequence[Run], split: str, score: Mapping[str, str]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Scores of the runs that trained two tasks under a fixed mask each, and notes on unfinished ones and
    those that were trained otherwise than most, which are left out.

    `score` names the main score of each task (`TrainConfig.main_scores`). Other runs have no rows. Raises
    `InputError` for files that cannot be read.
    """
    rows: list[dict[str, Any]] = []
    pairs = {
        str(run.folder): (run, config)
        for run in runs
        for config in [run.config()]
        if config.get("pruning") == "fixed" and len(config["tasks"]) == 2
        if config.get("gates", {}).get("scope") == "per_task"
    }
    settings = {name: settings_of_run(run) for name, (run, _) in pairs.items()}
    alike, notes = comparable(settings, MAY_DIFFER)
    for name in alike:
        run, config = pairs[name]
        tasks = settings[name].tasks
        scores, unscored = scores_of([run], split, score)
        notes += unscored
        if scores.is_empty():
            continue
        opened = last_gates(read_gates(run.folder / "gates.parquet")).filter("open").select("task", *KEYS)
        heads = {task: set(opened.filter(task=task).drop("task").rows()) for task in tasks}
        of_run = {"pair": "+".join(tasks), "overlap": len(heads[tasks[0]] & heads[tasks[1]])}
        of_run |= {"draw": _draw(run, config), "seed": int(config["seed"])}
        rows += [
            {**of_run, **row, "figure": score[row["task"]], "heads": len(heads[row["task"]])}
            for row in scores.iter_rows(named=True)
        ]
    table = pl.DataFrame(rows, schema=SCHEMA)
    return table.sort("pair", "overlap", "draw", "task", maintain_order=True), tuple(notes)


def _draw(run: Run, config: Mapping[str, Any]) -> int | None:
    """The number of the draw of a run's masks; `None` if they were not drawn, or no record of it is left."""
    masks = place_now(str(config["gates"]["masks"]), config, run.folder)
    record = run.status().get("draw") or draw_of(masks) or {}
    return record.get("draw")
