"""Scores of runs with copies of heads, beside those without and those of single tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from mtl.config.effective import different_keys
from mtl.errors import InputError
from mtl.runs.run import Run
from mtl.runs.tables import scores_of
from probes.statistics.remedies import JOINT, SINGLE

SCHEMA = pl.Schema(
    {
        "condition": pl.String, "task": pl.String, "seed": pl.Int64, "run": pl.String,
        "score": pl.Float64, "parameters": pl.Int64,
    }
)  # fmt: skip
_LETTERS = {
    ("rows", None): "B",
    ("routed", "contested"): "C",
    ("routed", "uncontested"): "D",
    ("routed", "all"): "E",
    ("shuffled", "contested"): "F",
    ("split", "contested"): "S",
    ("split", "uncontested"): "S'",
    ("transplant", "contested"): "G",
    ("transplant", "uncontested"): "G'",
}
"""The condition by the kind of copies and the heads that are copied."""


def remedy_scores(
    runs: Sequence[Run], split: str, score: Mapping[str, str]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """A row per run and task: condition, task, seed, run, score (per cent), parameters; and notes.

    The tasks are those of the runs with copies, which must be of one set. Joint and single-task runs count if
    they have no masks and were trained like the runs with copies. Raises `InputError` if no run has copies,
    if these are of several sets of tasks, or if two runs are of the same condition and seed.
    """
    configs = {str(run.folder): run.config() for run in runs}
    copied = [name for name, config in configs.items() if _kind(config) != "none"]
    if not copied:
        raise InputError("no run with clones.kind: give the runs of a study of remedies")
    sets = {tuple(configs[name]["tasks"]) for name in copied}
    if len(sets) > 1:
        several = ", ".join(sorted("+".join(names) for names in sets))
        raise InputError(f"runs with copies are of several sets of tasks ({several}): give those of one")
    [tasks] = sets
    like = configs[copied[0]]
    conditions, notes = {}, []
    for name, config in configs.items():
        if config.get("pruning", "none") != "none" or not set(config["tasks"]) <= set(tasks):
            continue
        condition = _condition(config, tasks)
        if condition is None:
            if _kind(config) != "none":
                notes.append(f"{name}: copies of this kind have no place in the figure: left out")
            continue
        if others := _otherwise(config, like):
            notes.append(f"{name} was trained with another {others[0]} than {copied[0]}: left out")
            continue
        conditions[name] = condition
    chosen = [run for run in runs if str(run.folder) in conditions]
    scores, without = scores_of(chosen, split, score)
    sizes = {name: encoder_parameters(Path(name)) for name in conditions}
    rows = [
        {
            **row,
            "condition": conditions[row["run"]],
            "seed": int(configs[row["run"]]["seed"]),
            "parameters": sizes[row["run"]],
        }
        for row in scores.iter_rows(named=True)
    ]
    table = (
        pl.DataFrame(rows, schema_overrides=SCHEMA).select(*SCHEMA) if rows else pl.DataFrame(schema=SCHEMA)
    )
    twice = table.filter(pl.struct("condition", "task", "seed").is_duplicated())
    if twice.height:
        first = twice.row(0, named=True)
        alike = twice.filter(condition=first["condition"], seed=first["seed"])["run"].unique(
            maintain_order=True
        )
        raise InputError(f"{alike[0]} and {alike[1]} are the same condition and seed: give one of them")
    return table, (*notes, *without)


def encoder_parameters(run: Path) -> int | None:
    """The number of the encoder's parameters, from the header of the run's model.safetensors.

    `None` if the file is missing or damaged.
    """
    path = run / "model" / "model.safetensors"
    try:
        with path.open("rb") as file:
            header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    except (OSError, ValueError):
        return None
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _kind(config: Mapping[str, Any]) -> str:
    return str(config.get("clones", {}).get("kind", "none"))


def _condition(config: Mapping[str, Any], tasks: tuple[str, ...]) -> str | None:
    kind = _kind(config)
    if kind != "none":
        return _LETTERS.get((kind, None if kind == "rows" else config["clones"]["heads"]))
    if tuple(config["tasks"]) == tasks:
        return JOINT
    return SINGLE if len(config["tasks"]) == 1 else None


def _otherwise(config: Mapping[str, Any], like: Mapping[str, Any]) -> list[str]:
    """The keys in which a run was trained otherwise, without settings that only some tasks or copies use."""
    used_by_some = {"tasks", "name", "seed", "clones", "gates", "balancer", "corpus", *like["tasks"]}
    return [key for key in different_keys(config, like) if key.partition(".")[0] not in used_by_some]
