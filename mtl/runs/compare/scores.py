"""The scores of several runs, the learning curve of one, and scores against open heads."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from mtl.config.effective import settings_in, unused_keys
from mtl.errors import InputError
from mtl.probes.report.data import HeadsKept
from mtl.probes.tables import table_files
from mtl.probes.tables.heads_table import last_gates
from mtl.probes.tables.table_files import by_catalogue
from mtl.runs.compare.comparable import gates_of
from mtl.runs.compare.settings import check_encoders, encoder_of, settings_of
from mtl.runs.compare.setups import setups_of, without_repeats, words_of
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted


def scores_of(
    runs: Sequence[Run], split: str, score: Mapping[str, str]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Per run and task, the score on a split from metrics.json (`score` names it for each task); and notes.

    A score that is no number, such as a correlation with a constant, is left out with a note. Raises
    `InputError` for a damaged file.
    """
    rows: list[dict[str, Any]] = []
    notes = []
    for run in runs:
        try:
            metrics: Any = json.loads((run.folder / "metrics.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            notes.append(f"{run.folder} is not finished (no metrics.json): left out")
            continue
        except (OSError, ValueError) as error:
            raise InputError(_unreadable(run, "it is not JSON")) from error
        if not _has_scores(metrics):
            raise InputError(_unreadable(run, "it holds no scores by split and task"))
        if split not in metrics:
            notes.append(f"{run.folder} has no scores on {split}: left out; there are {', '.join(metrics)}")
            continue
        for task, of_task in metrics[split].items():
            if score.get(task) not in of_task:
                continue
            value = of_task[score[task]]
            if not isinstance(value, int | float):
                raise InputError(_unreadable(run, f"the {score[task]} of {task} is not a number"))
            if not math.isfinite(value):
                notes.append(
                    f"{run.folder}: the {score[task]} of {task} on {split} is not a number: left out"
                )
                continue
            rows.append({"run": str(run.folder), "task": task, "score": float(value)})
    return pl.DataFrame(rows, schema={"run": pl.String, "task": pl.String, "score": pl.Float64}), tuple(notes)


def learned_nothing(
    metrics: Mapping[str, Mapping[str, Mapping[str, float]]], score: Mapping[str, str]
) -> dict[str, str]:
    """The tasks of which a run has learned nothing, each with a line that says why.

    `metrics` are its scores by split and task, `score` names the main one of each task. On no split is it
    above that of giving all items one label (`same_answer_scores`), or above 0 in tasks without such an
    answer.
    """
    found = {}
    for task, name in score.items():
        splits = {split: of[task] for split, of in metrics.items() if name in of.get(task, {})}
        same = {split: max(of.get("majority", 0.0), 0.0) for split, of in splits.items()}
        if splits and all(of[name] <= same[split] + 1e-9 for split, of in splits.items()):
            values = ", ".join(f"{of[name]:.2f} on {split}" for split, of in splits.items())
            best = (
                f"one label for all items scores {', '.join(f'{value:.2f}' for value in same.values())}"
                if any("majority" in of for of in splits.values())
                else "0 is the least possible"
            )
            found[task] = f"{task}: nothing was learned: {name} {values}, where {best}"
    return found


def metrics_of(run: Run) -> dict[str, dict[str, dict[str, float]]]:
    """The run's scores by split and task; none if there is no file or it is damaged, which others report."""
    try:
        return run.metrics()
    except InputError:
        return {}


def _unreadable(run: Run, reason: str) -> str:
    return f"{run.folder}/metrics.json cannot be read ({reason}): leave the run out, or train it again"


def _has_scores(metrics: object) -> bool:
    """Whether these are scores by split and task."""
    return isinstance(metrics, Mapping) and all(
        isinstance(by_task, Mapping) and all(isinstance(of_task, Mapping) for of_task in by_task.values())
        for by_task in metrics.values()
    )


def history_of(run: Run, score: Mapping[str, str]) -> pl.DataFrame:
    """Per evaluation and task, the score on dev: task, update, score.

    Raises `InputError` if history.csv cannot be read.
    """
    path = run.folder / "history.csv"
    try:
        table = table_files.read_csv(path)
        columns = {task: f"dev/{task}/{name}" for task, name in score.items()}
        scores = [
            pl.col(column).cast(pl.Float64).alias(task)
            for task, column in columns.items()
            if column in table.columns
        ]
        by_task = table.select(pl.col("update").cast(pl.Int64).alias(""), *scores)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path} cannot be read: no learning curve of this run") from error
    rows = by_task.unpivot(index="", variable_name="task", value_name="score")
    score_of = pl.col("score").cast(pl.Float64)
    return rows.filter(score_of.is_finite()).select("task", update=pl.col(""), score=score_of)


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
        notes += (f"{without} without masks (the first, {whole[0]}) stand at all heads",)
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
        .sort("setup", "kept", "seed", "score", "run")
    )
    return HeadsKept(by_catalogue(table), heads), (*copies, *notes, *without_scores, *too_many)


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
