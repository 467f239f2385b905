"""Scores of pairs under fixed masks, with the number of heads that the masks have in common."""

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
"""The keys in which compared runs may differ: masks have more or fewer heads in common."""
DRAWN_BY = ("pool", "by")
"""Keys of a draw's record that must be equal within a pair, besides the sizes of the masks."""
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

    Left out are unfinished runs, runs that repeat another one, and runs whose settings or kind of masks
    differ from those of most (masks: of most runs of their pair). `score` names the main score of each task
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
    by_file: dict[str, list[Run]] = {}  # older runs record no fingerprint of their masks, but their place
    for run, config in pairs.values():
        by_file.setdefault(str(config["gates"]["masks"]), []).append(run)
    once = [without_repeats(of_file) for of_file in by_file.values()]
    settings = {str(run.folder): settings_of_run(run) for kept, _ in once for run in kept}
    alike, unlike = comparable(settings, MAY_DIFFER)
    notes = [*(note for _, copies in once for note in copies), *unlike]
    scored = {}
    for name in alike:
        found, unscored = scores_of([pairs[name][0]], split, score)
        notes += unscored
        if found.height:
            scored[name] = found
    heads_of = {name: _heads(pairs[name][0], settings[name].tasks) for name in scored}
    kinds = {
        name: (
            settings[name].tasks,
            {"heads": [*map(len, heads.values())]}
            | {key: drawn[name][key] for key in DRAWN_BY if key in drawn[name]},
        )
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
    """The heads that are open in each task's mask."""
    opened = last_gates(read_gates(run.folder / "gates.parquet")).filter("open").select("task", *KEYS)
    return {task: set(opened.filter(task=task).drop("task").rows()) for task in tasks}


def _draw(run: Run, config: Mapping[str, Any]) -> dict[str, Any]:
    """How a run's masks were drawn; empty if they were not drawn, or no record of it is left."""
    masks = place_now(str(config["gates"]["masks"]), config, run.folder)
    return run.status().get("draw") or draw_of(masks) or {}


def _unlike(name: str, kinds: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]]) -> list[str]:
    """The keys in which the masks of a run differ from those of most runs of its pair."""
    tasks, own = kinds[name]
    of_pair = [kind for pair, kind in kinds.values() if pair == tasks]
    usual = max(of_pair, key=of_pair.count)
    return [key for key in dict.fromkeys([*own, *usual]) if own.get(key) != usual.get(key)]
