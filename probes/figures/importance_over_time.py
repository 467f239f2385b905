"""The importance of each head in the course of training."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from mtl.probes.figures.gates_over_time import heads_over_time
from mtl.probes.figures.head_history import HeadHistory, by_step, names_of
from mtl.probes.figures.style import grid_size

KEY = "importance, share of the most important head's at the evaluation"


def importance_history(importance: pl.DataFrame) -> HeadHistory:
    """A run's importance.parquet as shares of the task's most important head at each evaluation.

    Importance falls with the loss; shares still compare heads with each other.
    """
    tasks, steps = names_of(importance)
    most = by_step(importance, "value").max(axis=(2, 3))
    titles = [
        [f"{task}: at most {size:.2g} nats" for task, size in zip(tasks, at_step, strict=True)]
        for at_step in most
    ]
    shares = by_step(_with_shares(importance), "share")
    return HeadHistory(tasks, steps, grid_size(importance)[0], shares, titles, KEY)


def importance_over_time(importance: pl.DataFrame) -> Figure:
    """A row for each head and a column for each evaluation; black is the task's most important head there."""
    return heads_over_time(_with_shares(importance), "share", KEY)


def _with_shares(importance: pl.DataFrame) -> pl.DataFrame:
    most = pl.col("value").max().over("step", "task")
    return importance.with_columns(share=pl.when(most > 0).then(pl.col("value") / most).otherwise(0.0))
