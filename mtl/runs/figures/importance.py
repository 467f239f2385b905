"""Figures of importance over the training of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from mtl.errors import InputError
from mtl.files import whole_file
from mtl.probes.figures.head_history import animate as animate_history
from mtl.probes.figures.importance_over_time import importance_history, importance_over_time
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables
from mtl.runs.folder.importance_history import read_importance
from mtl.runs.folder.run import Run


def over_time(request: FigureRequest) -> FigureWithTables:
    """Importance of the heads at each evaluation."""
    table = _importance(request)
    return FigureWithTables(importance_over_time(table), tables={"": table})


def animate(request: FigureRequest, out: Path, kind: Literal["gif", "webp"]) -> tuple[int, tuple[str, ...]]:
    """Write importance over training as a moving figure; returns the number of pictures, and notes."""
    history = importance_history(_importance(request))
    with whole_file(out) as path:
        return animate_history(history, path, kind), ()


def _importance(request: FigureRequest) -> pl.DataFrame:
    folder = request.one_path()
    table = read_importance(Run.open(folder))
    chosen = table.filter(pl.col("task").is_in(request.tasks)) if request.tasks else table
    if chosen.is_empty():
        known = ", ".join(table["task"].unique(maintain_order=True))
        raise InputError(f"{folder} has importance over time for {known} only")
    return chosen
