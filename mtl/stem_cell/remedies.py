"""Scores of runs with copied or allotted heads, of runs without them, and of single tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from mtl.errors import InputError
from mtl.probes.stem_cell.statistics.equivalence import JOINT, SINGLE
from mtl.runs.compare.alike import comparable
from mtl.runs.compare.keys import MASKS
from mtl.runs.compare.scores import scores_of
from mtl.runs.compare.settings import settings_of_run
from mtl.runs.folder.run import Run

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
"""The condition, by the kind of copies and the heads that are copied."""
LIMITS = ("gates.overlap_penalty", "gates.at_most")
"""The keys that limit how many heads masks have in common; compared masks may differ in these."""
MAY_DIFFER = ("clones", *MASKS)
"""The keys in which compared runs may differ: those of copies and masks."""


def has_remedy(config: Mapping[str, Any]) -> bool:
    """Whether a run has copies of heads, or a mask per task of a target's size whose overlap is limited."""
    return _kind(config) != "none" or _allotment(config) in ("H", "O")


def remedy_scores(
    runs: Sequence[Run], split: str, score: Mapping[str, str]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """A row per run and task (`SCHEMA`; scores in per cent, parameters of the encoder), and notes.

    The tasks are those of the runs with a remedy, which must all have the same ones. Joint and single-task
    runs count if they have no masks and were trained like the runs with a remedy. Joint runs with a mask per
    task count if some runs limit the overlap of such masks and have the same gates otherwise. Raises
    `InputError` if no run has a remedy, if such runs have different tasks, or if two runs are of the same
    condition and seed.
    """
    runs_by_name = {str(run.folder): run for run in runs}
    configs = {name: run.config() for name, run in runs_by_name.items()}
    remedied = [name for name, config in configs.items() if has_remedy(config)]
    if not remedied:
        raise InputError(
            "no run with clones.kind, nor with gates.at_most or gates.overlap_penalty at a target of its own "
            "for each task: use the runs of a study of remedies"
        )
    of_runs = {name: settings_of_run(run) for name, run in runs_by_name.items()}
    sets = {of_runs[name].tasks for name in remedied}
    if len(sets) > 1:
        several = ", ".join(sorted("+".join(names) for names in sets))
        raise InputError(f"runs with a remedy have different tasks ({several}): use runs of the same tasks")
    [tasks] = sets
    masked = any(_allotment(configs[name]) is not None for name in remedied)
    settings, conditions, notes = {}, {}, []
    for name, config in configs.items():
        made = of_runs[name]
        if made.derivation or not set(made.tasks) <= set(tasks):
            continue
        condition = _condition(config, made.tasks == tasks, masked)
        if condition is not None:
            conditions[name], settings[name] = condition, made
        elif _kind(config) != "none":
            notes.append(f"{name}: copies of this kind have no place in the figure: left out")
    alike, left_out = comparable(settings, MAY_DIFFER, like=[name for name in remedied if name in settings])
    notes += left_out
    # Masks are compared with masks only, whose gates differ in nothing but the limits of overlap.
    with_masks = {name: settings[name] for name in alike if settings[name].pruning != "none"}
    limited = [name for name in with_masks if name in remedied]
    alike_masks, left_out = comparable(with_masks, LIMITS, like=limited) if limited else ([], [])
    notes += left_out
    conditions = {name: conditions[name] for name in alike if name not in with_masks or name in alike_masks}
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
        same = twice.filter(condition=first["condition"], seed=first["seed"])
        names = same["run"].unique(maintain_order=True)
        raise InputError(f"{names[0]} and {names[1]} are the same condition and seed: use one of them")
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


def _condition(config: Mapping[str, Any], joint: bool, masked: bool) -> str | None:
    """A run's condition, if it has one; `joint`: it has all tasks, `masked`: masks are compared."""
    kind = _kind(config)
    if config.get("pruning", "none") != "none":
        return _allotment(config) if masked and joint else None
    if kind != "none":
        return _LETTERS.get((kind, None if kind == "rows" else config["clones"]["heads"]))
    if joint:
        return JOINT
    return SINGLE if len(config["tasks"]) == 1 else None


def _allotment(config: Mapping[str, Any]) -> str | None:
    """The condition of a run with a learned mask per task at a target: H, O, or H' without a limit."""
    gates = config.get("gates") or {}
    learned = config.get("pruning", "none") in ("dynamic", "static") and _kind(config) == "none"
    if not learned or gates.get("scope") != "per_task" or gates.get("target_open") is None:
        return None
    at_most = gates.get("at_most")
    if at_most is not None and at_most < len(config["tasks"]):
        return "H"
    penalty = gates.get("overlap_penalty") or 0.0
    return "O" if penalty > 0 else "H'" if penalty == 0 else None
