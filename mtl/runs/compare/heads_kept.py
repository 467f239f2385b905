"""Scores against open heads: one row for each run and task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from mtl.config.effective import settings_in, unused_keys
from mtl.errors import InputError
from mtl.probes.report.data import HeadsKept
from mtl.probes.tables.gates_table import last_gates
from mtl.runs.compare.encoders import check_encoders, encoder_of
from mtl.runs.compare.gates import gates_of
from mtl.runs.compare.left_out import without_repeats
from mtl.runs.compare.scores import scores_of
from mtl.runs.compare.settings import settings_of
from mtl.runs.compare.setups import setups_of, words_of
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted

KEEPING = ("penalty", "target_open")
"""Keys of `gates` that set how many heads are kept."""
MOST_SETUPS = 16
"""The largest number of setups that a figure can distinguish."""


def heads_kept_of(
    runs: Sequence[Run], split: str, score: Mapping[str, str], tasks: Sequence[str] = ()
) -> tuple[HeadsKept, tuple[str, ...]]:
    """The scores and open heads of runs, and notes.

    Runs without masks have all heads open. Cut runs (`mtl prune`), and runs that started from one, have the
    heads that are left. Runs that repeat another one are left out.

    Raises `InputError` if no run has masks, none has scores, or the encoders differ.
    """
    left = {run.folder: int(heads) for run in runs if (heads := run.status().get("heads_kept")) is not None}
    runs, copies = without_repeats(runs)
    bare = [run.folder for run in runs if not (run.folder / "gates.parquet").is_file()]
    check_encoders({str(run.folder): encoder_of(run) for run in runs})
    masked = [run for run in runs if run.folder not in bare]
    gates, notes = gates_of(masked or runs, tasks, shared_once=False)
    whole = [folder for folder in bare if folder not in left]
    if whole:
        without = counted(len(whole), "run")
        notes += (f"{without} without masks (the first, {whole[0]}): drawn with all heads",)
    last = last_gates(gates)
    heads = last.group_by("run", "task").len()["len"][0]
    open_heads = last.group_by("run", "task").agg(kept=pl.col("open").sum().cast(pl.Int64))
    scores, without_scores = scores_of(runs, split, score)
    if tasks:
        scores = scores.filter(pl.col("task").is_in(tasks))
    if scores.is_empty():
        raise InputError("; ".join([*without_scores, f"no scores on {split}"]))
    settings, too_many = _settings(runs)
    cut = pl.DataFrame(
        [(str(folder), heads) for folder, heads in left.items()],
        {"run": pl.String, "left": pl.Int64},
        orient="row",
    )
    table = (
        scores.join(open_heads, on=["run", "task"], how="left")
        .join(settings, on="run")
        .join(cut, on="run", how="left")
        .with_columns(pl.coalesce("kept", "left", pl.lit(heads)).alias("kept"))
        .select("task", "setup", "setting", "seed", "run", "kept", "score")
        .sort("task", "setup", "kept", "seed", "score", "run")
    )
    return HeadsKept(table, heads), (*copies, *notes, *without_scores, *too_many)


def _settings(runs: Sequence[Run]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The setup and seed of each run and, in `setting`, its values of the keys in `KEEPING`; and notes.

    Runs are of one setup if they differ only in these keys, the number of heads left and their seeds.
    """
    configs = [run.config() for run in runs]
    gates = [dict(config.get("gates", {})) for config in configs]
    settings: list[str | None] = [
        ", ".join(_kept_by(config, keys)) for config, keys in zip(configs, gates, strict=True)
    ]
    alike = [
        dataclasses.replace(settings_of({**config, "gates": keys}, run.status(), run.folder), heads_kept=None)
        for run, config, keys in zip(runs, configs, gates, strict=True)
    ]
    setups = [setup.name for setup in setups_of(alike)]
    notes: tuple[str, ...] = ()
    if len(set(setups)) > MOST_SETUPS:
        notes = (
            f"{counted(len(set(setups)), 'setup is', 'setups are')} too many to be told apart: only "
            "their points are drawn, no lines",
        )
        setups, settings = ["runs of many setups"] * len(runs), [None] * len(runs)
    table = pl.DataFrame(
        {
            "run": [str(run.folder) for run in runs],
            "setup": setups,
            "setting": pl.Series(settings, dtype=pl.String),
            "seed": [int(config["seed"]) for config in configs],
        }
    )
    return table, notes


def _kept_by(config: Mapping[str, Any], gates: dict[str, Any]) -> list[str]:
    """The settings in `KEEPING` that have an effect, in words; removes all in `KEEPING` from `gates`.

    A penalty has no effect beside a target, unless both are for kinds of attention.
    """
    values = {key: gates.pop(key, None) for key in KEEPING}
    if config.get("pruning", "none") == "none":
        return []
    unused = unused_keys(settings_in(config))
    return [
        word
        for key, value in values.items()
        if value is not None and f"gates.{key}" not in unused
        for word in words_of(
            f"gates.{key}", dict(sorted(value.items())) if isinstance(value, Mapping) else value
        )
    ]
