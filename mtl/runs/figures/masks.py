"""Figures of masks: overlap of runs or tasks, their correlation, and one run's masks over time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from jaxtyping import Float

from mtl.errors import InputError
from mtl.files import whole_file
from mtl.probes.figures.correlation import correlation_matrix
from mtl.probes.figures.gates_over_time import gates_over_time
from mtl.probes.figures.grey_overlap import grey_overlap
from mtl.probes.figures.masks import animation, mask_picture
from mtl.probes.figures.rgb_overlap import rgb_overlap
from mtl.probes.sites import KEYS, Site
from mtl.probes.statistics.masks import final_masks
from mtl.probes.statistics.overlap import correlation_table, task_overlaps
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables
from mtl.runs.tables import gates_of


def rgb(request: FigureRequest) -> FigureWithTables:
    """Three runs of a task, or three tasks, each as a colour channel; `InputError` for other numbers."""
    gates, notes = _gates(request)
    names = list(gates["task"].unique(maintain_order=True))
    if len(names) == 3:
        masks, left_out = final_masks(gates)
        return _rgb(masks.mean(), masks.sites, masks.tasks, (*notes, *left_out))
    runs = gates.select("run", "seed", "task").unique(maintain_order=True)
    if runs.height != 3 or runs["run"].n_unique() != 3:
        raise InputError(
            f"rgb needs three runs with a mask each, or three tasks; given are {runs['run'].n_unique()} with "
            f"masks of {', '.join(names)}: add runs, or choose with --tasks=[a,b,c]"
        )
    # Here each run is a channel, regardless of its seed and task.
    numbered = {run: place for place, run in enumerate(runs["run"])}
    masks, _ = final_masks(
        gates.with_columns(task=pl.lit("mask"), seed=pl.col("run").replace_strict(numbered))
    )
    by_task = len(names) > 1
    channels = [
        f"{row['task']} {row['seed']}" if by_task else f"seed {row['seed']}"
        for row in runs.iter_rows(named=True)
    ]
    if len(set(channels)) < 3:
        channels = [Path(run).name for run in runs["run"]]
    return _rgb(masks.gate[0], masks.sites, channels, notes)


def _rgb(
    gates: Float[np.ndarray, "3 site head"],
    sites: Sequence[Site],
    names: Sequence[str],
    notes: tuple[str, ...],
) -> FigureWithTables:
    drawn = rgb_overlap(gates, sites, names)
    return FigureWithTables(drawn, notes, {"": pl.concat(map(partial(_rows, sites), names, gates))})


def _rows(sites: Sequence[Site], mask: str, gate: Float[np.ndarray, "site head"]) -> pl.DataFrame:
    """A mask as rows: mask, attention, layer, head, gate."""
    rows = [
        (mask, *site, head, float(gate[place, head]))
        for place, site in enumerate(sites)
        for head in range(gate.shape[1])
    ]
    return pl.DataFrame(rows, ("mask", *KEYS, "gate"), orient="row")


def grey(request: FigureRequest) -> FigureWithTables:
    """The share of all masks that keep a head open."""
    gates, notes = _gates(request)
    by_run = gates.with_columns(task=pl.format("{} {}", "run", "task"), seed=pl.lit(0))
    masks, _ = final_masks(by_run)
    used = _rows(masks.sites, f"mean of {len(masks.gate)}", masks.gate[:, 0].mean(0))
    return FigureWithTables(grey_overlap(masks.gate[:, 0], masks.sites), notes, {"": used})


def correlation(request: FigureRequest) -> FigureWithTables:
    """The correlation of tasks' masks."""
    gates, notes = _gates(request)
    masks, left_out = final_masks(gates)
    if len(masks.seeds) < 3:
        left_out += (f"{len(masks.seeds)} seed{'s' * (len(masks.seeds) > 1)}: the diagonal needs three",)
    table = correlation_table(masks)
    beside = {"": table, "-overlap": task_overlaps(masks)}
    return FigureWithTables(correlation_matrix(table), (*notes, *left_out), beside)


def over_time(request: FigureRequest) -> FigureWithTables:
    """One run's gates over its training."""
    request.one_path()
    gates, notes = _gates(request)
    return FigureWithTables(gates_over_time(gates), notes, {"": gates.select("task", "step", *KEYS, "gate")})


def final(request: FigureRequest) -> FigureWithTables:
    """One run's masks after training."""
    request.one_path()
    gates, notes = _gates(request)
    last = gates.filter(pl.col("step") == pl.col("step").max().over("task"))
    return FigureWithTables(mask_picture(gates), notes, {"": last.select("task", *KEYS, "gate", "open")})


def animate(request: FigureRequest, out: Path, kind: Literal["gif", "webp"]) -> tuple[int, tuple[str, ...]]:
    """Write one run's masks over its training; returns the number of pictures, and notes."""
    request.one_path()
    gates, notes = _gates(request)
    with whole_file(out) as path:
        return animation(gates, path, kind), notes


def _gates(request: FigureRequest) -> tuple[pl.DataFrame, tuple[str, ...]]:
    runs, left_out = request.runs()
    gates, notes = gates_of(runs, request.tasks)
    return gates, (*left_out, *notes)
