"""How the importance of heads moves while a run is trained."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from mtl.probes.figures.gates_over_time import heads_over_time
from mtl.probes.figures.head_history import HeadHistory, by_step, names_of
from mtl.probes.figures.style import grid_size

KEY = "importance, share of the most important head's at the evaluation"


def importance_history(importance: pl.DataFrame) -> HeadHistory:
    """A run's importance.parquet as shares of the task's most important head at each evaluation.

    Importance falls with the loss; shares compare heads with each other all the same.
    """
    tasks, steps = names_of(importance)
    values = by_step(importance, "value")
    most = values.max(axis=(2, 3), keepdims=True)
    titles = [
        [f"{task}: at most {size:.2g} nats" for task, size in zip(tasks, at_step, strict=True)]
        for at_step in most[:, :, 0, 0]
    ]
    shares = values / np.where(most > 0, most, 1)
    return HeadHistory(tasks, steps, grid_size(importance)[0], shares, titles, KEY)


def importance_over_time(importance: pl.DataFrame) -> Figure:
    """Every head a row, every evaluation a column; black is the task's most important head there."""
    most = pl.col("value").max().over("step", "task")
    shares = importance.with_columns(share=pl.when(most > 0).then(pl.col("value") / most).otherwise(0.0))
    return heads_over_time(shares, "share", KEY)
