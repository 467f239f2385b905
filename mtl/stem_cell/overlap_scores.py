"""Scores of pairs under fixed masks, beside how many heads the masks have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from mtl.heads.gate_file import read_gates
from mtl.probes.sites import KEYS
from mtl.probes.tables.gates_table import last_gates
from mtl.runs.compare.alike import comparable
from mtl.runs.compare.left_out import without_repeats
from mtl.runs.compare.scores import scores_of
from mtl.runs.compare.settings import settings_of_run
from mtl.runs.folder.content import draw_of, place_now
from mtl.runs.folder.run import Run

MAY_DIFFER = ("gates.masks",)
"""What is compared: masks that have more or fewer heads in common."""
DRAWN_BY = ("pool", "by")
"""What of the record of a draw must be alike within a pair, beside the numbers of heads of its masks."""
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
    """Scores of the runs that trained two tasks under a fixed mask each, and notes on those left out.

    Left out are unfinished runs, those that repeat another one, those that were trained otherwise than most,
    and those whose masks have other sizes than most of their pair. `score` names the main score of each task
    (`TrainConfig.main_scores`). Raises `InputError` for files that cannot be read.
    """
    rows: list[dict[str, Any]] = []
    pairs = {
        str(run.folder): (run, config)
        for run in runs
        for config in [run.config()]
        if config.get("pruning") == "fixed" and len(config["tasks"]) == 2
        if config.get("gates", {}).get("scope") == "per_task"
    }
    drawn = {name: _draw(run, config) for name, (run, config) in pairs.items()}
    draws = {run.folder: drawn[name].get("draw") for name, (run, _) in pairs.items()}
    once, copies = without_repeats([run for run, _ in pairs.values()], draws)
    settings = {str(run.folder): settings_of_run(run) for run in once}
    alike, unlike = comparable(settings, MAY_DIFFER)
    notes = [*copies, *unlike]
    scored = {}
    for name in alike:
        found, unscored = scores_of([pairs[name][0]], split, score)
        notes += unscored
        if found.height:
            scored[name] = found
    heads_of = {name: _heads(pairs[name][0], settings[name].tasks) for name in scored}
    kinds = {
        name: (settings[name].tasks, {"heads": [*map(len, heads.values())]} | _kept(drawn[name], DRAWN_BY))
        for name, heads in heads_of.items()
    }
    for name, scores in scored.items():
        tasks, heads = settings[name].tasks, heads_of[name]
        if unlike := _unlike(name, kinds):
            notes.append(
                f"{name} has masks of another kind than most of its pair ({', '.join(unlike)}): left out"
            )
            continue
        of_run = {"pair": "+".join(tasks), "overlap": len(heads[tasks[0]] & heads[tasks[1]])}
        of_run |= {"draw": drawn[name].get("draw"), "seed": settings[name].seed}
        rows += [
            {**of_run, **row, "figure": score[row["task"]], "heads": len(heads[row["task"]])}
            for row in scores.iter_rows(named=True)
        ]
    table = pl.DataFrame(rows, schema=SCHEMA)
    return table.sort("pair", "overlap", "draw", "task", maintain_order=True), tuple(notes)


def _heads(run: Run, tasks: Sequence[str]) -> dict[str, set[tuple[Any, ...]]]:
    """The heads that each task's mask has open."""
    opened = last_gates(read_gates(run.folder / "gates.parquet")).filter("open").select("task", *KEYS)
    return {task: set(opened.filter(task=task).drop("task").rows()) for task in tasks}


def _draw(run: Run, config: Mapping[str, Any]) -> dict[str, Any]:
    """How a run's masks were drawn; empty if they were not drawn, or no record of it is left."""
    masks = place_now(str(config["gates"]["masks"]), config, run.folder)
    return run.status().get("draw") or draw_of(masks) or {}


def _kept(record: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: record[key] for key in keys if key in record}


def _unlike(name: str, kinds: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]]) -> list[str]:
    """In what the masks of a run differ from those of most runs of its pair, but for what is in common."""
    tasks, own = kinds[name]
    of_pair = [kind for pair, kind in kinds.values() if pair == tasks]
    usual = max(of_pair, key=of_pair.count)
    return [key for key in dict.fromkeys([*own, *usual]) if own.get(key) != usual.get(key)]
