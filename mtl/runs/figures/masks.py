"""Figures of masks: overlap of runs or tasks, their correlation, and one run's masks over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from mtl.config.instances import kinds_in
from mtl.errors import InputError
from mtl.files import whole_file
from mtl.probes.appearance import ordered
from mtl.probes.figures.head_maps import correlation_matrix
from mtl.probes.figures.history import gates_over_time
from mtl.probes.figures.masks import CHANNELS, animation, grey_overlap, mask_picture, rgb_overlap
from mtl.probes.sites import KEYS, Site
from mtl.probes.statistics.masks import (
    CORRELATION_UNITS,
    OVERLAP_UNITS,
    correlation_table,
    final_masks,
    mostly_forced,
    task_overlaps,
)
from mtl.probes.tables.heads_table import last_gates
from mtl.probes.tables.label_scores import open_heads_by_mask
from mtl.probes.tables.table_files import ColumnUnit, by_catalogue
from mtl.runs.compare.comparable import gates_of
from mtl.runs.compare.heads import comparable, differences
from mtl.runs.compare.scores import learned_nothing, metrics_of
from mtl.runs.compare.settings import check_encoders, encoder_of, settings_of_run
from mtl.runs.compare.setups import without_repeats
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables
from mtl.tasks.in_words import counted

_OF_GATES = {"": ColumnUnit.NUMBER.of("gate", "mean_gate")}


def rgb(request: FigureRequest) -> FigureWithTables:
    """Three runs of a task, or three tasks, each as a colour channel; `InputError` for other numbers."""
    gates, notes = _gates(request)
    names = list(gates["task"].unique(maintain_order=True))
    if len(names) == CHANNELS and gates.select("run", "task").unique().height > CHANNELS:
        gates, notes = _gates(request, averaged=True)
        names = list(gates["task"].unique(maintain_order=True))
    if len(names) == CHANNELS:
        masks, left_out = final_masks(gates)
        by_task = [mostly_forced(*of_task) for of_task in zip(masks.opened, masks.learned, strict=True)]
        opened, closed = (np.stack(each) for each in zip(*by_task, strict=True))
        of_task = _Channels(
            masks.tasks, masks.mean(), masks.claimed(), masks.learned_claims(), (opened, closed)
        )
        return _rgb(of_task, masks.sites, (*notes, *left_out))
    runs = gates.select("run", "seed", "task").unique(maintain_order=True)
    if runs.height != CHANNELS or runs["run"].n_unique() != CHANNELS:
        raise InputError(
            f"rgb needs three runs with a mask each, or three tasks, and has {runs['run'].n_unique()} with "
            f"masks of {', '.join(names)}: add runs, or choose with --tasks=[a,b,c]"
        )
    # Here each run is a channel, regardless of its seed and task.
    runs = by_catalogue(runs.sort("seed", "run"))
    numbered = {run: place for place, run in enumerate(runs["run"])}
    masks, _ = final_masks(
        gates.with_columns(task=pl.lit("mask"), seed=pl.col("run").replace_strict(numbered))
    )
    several = len(names) > 1
    channels = [
        f"{row['task']} {row['seed']}" if several else f"seed {row['seed']}"
        for row in runs.iter_rows(named=True)
    ]
    if len(set(channels)) < CHANNELS:
        channels = [Path(run).name for run in runs["run"]]
    if len(set(channels)) < CHANNELS:
        channels = list(runs["run"])
    opened, learned = masks.opened[0], masks.learned[0]
    forced = (opened & ~learned, ~opened & learned)
    of_runs = _Channels(channels, masks.gate[0], opened, opened & learned, forced)
    return _rgb(of_runs, masks.sites, notes)


class _Channels(NamedTuple):
    """The three masks of an RGB picture."""

    names: Sequence[str]
    gates: Float[np.ndarray, "3 site head"]
    kept: Bool[np.ndarray, "3 site head"]
    learned: Bool[np.ndarray, "3 site head"]
    forced: tuple[Bool[np.ndarray, "3 site head"], Bool[np.ndarray, "3 site head"]]

    def ordered(self) -> _Channels:
        """The masks in the chosen order (`mtl.probes.appearance`)."""
        names = ordered(self.names)
        places = [self.names.index(name) for name in names]
        forced = self.forced[0][places], self.forced[1][places]
        return _Channels(names, self.gates[places], self.kept[places], self.learned[places], forced)


def _rgb(channels: _Channels, sites: Sequence[Site], notes: tuple[str, ...]) -> FigureWithTables:
    channels = channels.ordered()
    drawn = rgb_overlap(channels.gates, sites, channels.names, channels.kept, channels.forced)
    each = zip(channels.names, channels.gates, channels.kept, channels.learned, strict=True)
    rows = pl.concat(_rows(sites, *mask) for mask in each)
    return FigureWithTables(drawn, notes, {"": rows}, {"": open_heads_by_mask(rows, "mask")}, _OF_GATES)


def _rows(
    sites: Sequence[Site],
    mask: str,
    gate: Float[np.ndarray, "site head"],
    kept: Bool[np.ndarray, "site head"],
    learned: Bool[np.ndarray, "site head"],
) -> pl.DataFrame:
    """A mask as rows: mask, attention, layer, head, gate, kept, and learned (kept, but not by force)."""
    rows = [
        (mask, *site, head, float(gate[place, head]), bool(kept[place, head]), bool(learned[place, head]))
        for place, site in enumerate(sites)
        for head in range(gate.shape[1])
    ]
    return pl.DataFrame(rows, ("mask", *KEYS, "gate", "kept", "learned"), orient="row")


def grey(request: FigureRequest) -> FigureWithTables:
    """The share of all masks that keep a head open."""
    gates, notes = _gates(request, averaged=True, once=True)
    by_run = gates.with_columns(task=pl.format("{} {}", "run", "task"), seed=pl.lit(0))
    masks, _ = final_masks(by_run)
    gate, opened, learned = masks.gate[:, 0], masks.opened[:, 0], masks.kept_by_learning()[:, 0]
    rows = [
        (*site, head, float(gate[:, place, head].mean()), int(opened[:, place, head].sum()),
         int(learned[:, place, head].sum()), len(gate))
        for place, site in enumerate(masks.sites)
        for head in range(gate.shape[2])
    ]  # fmt: skip
    used = pl.DataFrame(rows, (*KEYS, "mean_gate", "kept", "learned", "masks"), orient="row")
    drawn = grey_overlap(gate, masks.sites, mostly_forced(opened, masks.learned[:, 0]))
    return FigureWithTables(drawn, notes, {"": used}, units=_OF_GATES)


def draw_correlation(request: FigureRequest) -> FigureWithTables:
    """The correlation of tasks' masks."""
    gates, notes = _gates(request, averaged=True)
    masks, left_out = final_masks(gates)
    if len(masks.seeds) < 3:
        left_out += (f"{counted(len(masks.seeds), 'seed')}: the diagonal needs three",)
    if len(masks.seeds) > 3:
        first = ", ".join(map(str, masks.seeds[:3]))
        left_out += (f"the diagonal is of seeds {first}, the first three of {len(masks.seeds)}",)
    table = correlation_table(masks)
    beside = {"": table, "-overlap": task_overlaps(masks)}
    units = {"": CORRELATION_UNITS, "-overlap": OVERLAP_UNITS}
    return FigureWithTables(correlation_matrix(table), (*notes, *left_out), beside, units=units)


def draw_gates(request: FigureRequest) -> FigureWithTables:
    """One run's gates over its training."""
    request.one_path()
    gates, notes = _gates(request)
    numbers = gates.select("task", "step", *KEYS, "gate")
    counts = gates.group_by("task", "step", maintain_order=True).agg(open=pl.col("open").cast(pl.Int64).sum())
    wide = counts.pivot("task", index="step", values="open")
    units = {"": ColumnUnit.NUMBER.of("gate") | ColumnUnit.NAMED.of(*counts["task"].unique())}
    return FigureWithTables(gates_over_time(gates), notes, {"": numbers}, {"": wide}, units)


def final(request: FigureRequest) -> FigureWithTables:
    """One run's masks after training."""
    request.one_path()
    gates, notes = _gates(request)
    numbers = by_catalogue(last_gates(gates).select("task", *KEYS, "gate", "open", "learned"))
    return FigureWithTables(
        mask_picture(gates),
        notes,
        {"": numbers},
        {"": open_heads_by_mask(numbers, "task", "open")},
        _OF_GATES,
    )


def animate_masks(
    request: FigureRequest, out: Path, kind: Literal["gif", "webp"]
) -> tuple[int, tuple[str, ...]]:
    """Write one run's masks over its training; returns the number of pictures, and notes."""
    request.one_path()
    gates, notes = _gates(request)
    with whole_file(out) as path:
        return animation(gates, path, kind, notes=notes), notes


def _gates(
    request: FigureRequest, averaged: bool = False, once: bool = False
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The gates of the runs, and notes.

    Runs that are shown side by side may differ, and a note names the differences. If a figure is `averaged`
    over runs, those that were made otherwise than most are left out. With `once`, so are those that repeat
    another one; without it, `final_masks` refuses these.
    """
    runs, left_out = request.runs()
    masked = {run: settings_of_run(run) for run in runs if (run.folder / "gates.parquet").is_file()}
    if averaged:
        check_encoders({str(run.folder): encoder_of(run) for run in runs})
        first, copies = without_repeats(list(masked)) if once else (list(masked), [])
        alike, unlike = comparable({str(run.folder): masked[run] for run in first})
        runs = [run for run in runs if run not in masked or str(run.folder) in alike]
        unlike = [*copies, *unlike]
    else:
        unlike = differences({str(run.folder): settings for run, settings in masked.items()})
    gates, notes = gates_of(runs, request.tasks)
    masks = gates.group_by("run", maintain_order=True).agg(pl.col("task").unique())
    drawn = {run: {task for mask in of_run for task in mask.split("+")} for run, of_run in masks.iter_rows()}
    unlearned = [
        f"{run.folder}: {line}: its mask claims no head"
        for run in runs
        for task, line in learned_nothing(
            metrics_of(run), {name: kind.score for name, kind in kinds_in(run.config()).items()}
        ).items()
        if task in drawn.get(str(run.folder), ())
    ]
    return gates, (*left_out, *unlike, *notes, *unlearned)
