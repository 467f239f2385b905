"""The scores of several runs, and the learning curve of one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from mtl.errors import InputError
from mtl.probes.tables import table_files
from mtl.runs.folder.run import Run


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
