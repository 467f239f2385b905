"""Masks as pictures, at one moment and over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from jaxtyping import Bool
from matplotlib.figure import Figure

from mtl.probes.figures.head_history import HeadHistory, animate, by_step, names_of, picture
from mtl.probes.figures.style import grid_size


def mask_picture(gates: pl.DataFrame) -> Figure:
    """The masks at the last step of a run's gates.parquet, a panel each: black is open, white is closed.

    Heads that a target forced open or shut (`learned` differs from `open`) are struck through.
    """
    return picture(_history(gates))


def animation(
    gates: pl.DataFrame,
    path: Path,
    kind: Literal["gif", "webp"] = "gif",
    seconds: float = 6.0,
    notes: Sequence[str] = (),
) -> int:
    """Write the masks of all steps as an animation with these notes, and return the number of pictures."""
    return animate(_history(gates), path, kind, seconds, notes)


def _history(gates: pl.DataFrame) -> HeadHistory:
    """The gates; titles have the number of open heads, and of those that no target forced open."""
    tasks, steps = names_of(gates)
    values = by_step(gates, "gate")
    opened = by_step(gates, "open") > 0
    learned = by_step(gates, "learned") > 0 if "learned" in gates.columns else opened
    heads = values[0, 0].size
    titles = [
        [_title(task, now, before, heads) for task, now, before in zip(tasks, *at_step, strict=True)]
        for at_step in zip(opened, learned, strict=True)
    ]
    key = "gate: white closed, black open"
    forced = opened & ~learned, ~opened & learned
    return HeadHistory(tasks, steps, grid_size(gates)[0], values, titles, key, forced)


def _title(
    task: str, opened: Bool[np.ndarray, "site head"], learned: Bool[np.ndarray, "site head"], heads: int
) -> str:
    if (opened == learned).all():
        return f"{task}: {opened.sum()} of {heads} open"
    return f"{task}: {opened.sum()} of {heads} open,\n{(opened & learned).sum()} learned"
