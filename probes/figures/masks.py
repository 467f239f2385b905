"""Masks as pictures, at one moment and over time."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl
from matplotlib.figure import Figure

from mtl.probes.figures.head_history import HeadHistory, animate, by_step, names_of, picture
from mtl.probes.figures.style import grid_size


def mask_picture(gates: pl.DataFrame) -> Figure:
    """The masks at the last step of a run's gates.parquet, a panel each: black is open, white closed."""
    return picture(_history(gates))


def animation(
    gates: pl.DataFrame, path: Path, kind: Literal["gif", "webp"] = "gif", seconds: float = 6.0
) -> int:
    """Write the masks of all steps as an animation; returns the number of pictures."""
    return animate(_history(gates), path, kind, seconds)


def _history(gates: pl.DataFrame) -> HeadHistory:
    """The gates, with the numbers of open heads as titles."""
    tasks, steps = names_of(gates)
    values = by_step(gates, "gate")
    opened = by_step(gates, "open").astype(int).sum((2, 3))
    heads = values[0, 0].size
    titles = [
        [f"{task}: {count} of {heads} open" for task, count in zip(tasks, at_step, strict=True)]
        for at_step in opened
    ]
    return HeadHistory(tasks, steps, grid_size(gates)[0], values, titles, "gate: white closed, black open")
