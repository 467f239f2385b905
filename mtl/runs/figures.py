"""Figures and the tables beside them, drawn from the folders of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import polars as pl
from matplotlib.figure import Figure

from mtl.config.schema import TASK_NAMES, TrainConfig
from mtl.errors import InputError
from mtl.files import whole_file
from mtl.runs.curves import curves_of, role_survival_of, times_of
from mtl.runs.heads_kept import heads_kept_of
from mtl.runs.importance_history import read_importance
from mtl.runs.run import Run
from mtl.runs.tables import gates_of, heads_of
from mtl.runs.worth import check_measure, with_groups, worth_of
from probes import table_files
from probes.figures.correlation import correlation_matrix
from probes.figures.gates_over_time import gates_over_time
from probes.figures.grey_overlap import grey_overlap
from probes.figures.head_history import animate as animate_history
from probes.figures.head_label_heatmap import head_label_heatmap
from probes.figures.head_maps import head_maps
from probes.figures.heads_kept import heads_kept
from probes.figures.importance_over_time import importance_history, importance_over_time
from probes.figures.label_accuracy import label_accuracy
from probes.figures.masks import animation, mask_picture
from probes.figures.prediction import prediction_dots
from probes.figures.pruning_curves import mean_curves, pruning_curves, role_curves, time_curves
from probes.figures.rgb_overlap import rgb_overlap
from probes.figures.style import FORMATS, render
from probes.measures.table import BY_NAME
from probes.statistics.agreement import agreement
from probes.statistics.head_values import head_means
from probes.statistics.masks import final_masks
from probes.statistics.overlap import correlation_table, task_overlaps
from probes.statistics.prediction import prediction
from probes.statistics.skill import absent_labels, label_values, skills

Name = Literal[
    "rgb", "grey", "correlation", "gates", "masks", "labels", "heatmap", "heads-kept", "heads", "prediction",
    "agreement", "importance-over-time", "curve", "curve-roles", "curve-time",
]  # fmt: skip
"""Figures that are one picture; `animation` is a file of many, as is `importance-over-time` as .gif."""
Shown = Literal["masks", "importance"]
"""What an animation shows."""
MEASURE = "ablation"
"""The measure that is drawn where none is chosen."""


@dataclass(frozen=True)
class FigureWithTables:
    """A figure, notes on it, and its numbers."""

    figure: Figure
    notes: tuple[str, ...] = ()
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """By the end of the file's name, before the suffix."""


def _opened(folders: Sequence[Path]) -> list[Run]:
    return [Run.open(folder) for folder in folders]


def _rgb(folders: Sequence[Path], tasks: Sequence[str], split: str) -> FigureWithTables:
    gates, notes = gates_of(_opened(folders), tasks)
    names = list(gates["task"].unique(maintain_order=True))
    if len(names) == 3:
        masks, left_out = final_masks(gates)
        return FigureWithTables(rgb_overlap(masks.mean(), masks.sites, masks.tasks), (*notes, *left_out))
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
    return FigureWithTables(rgb_overlap(masks.gate[0], masks.sites, channels), notes)


def _grey(folders: Sequence[Path], tasks: Sequence[str], split: str) -> FigureWithTables:
    gates, notes = gates_of(_opened(folders), tasks)
    by_run = gates.with_columns(task=pl.format("{} {}", "run", "task"), seed=pl.lit(0))
    masks, _ = final_masks(by_run)
    return FigureWithTables(grey_overlap(masks.gate[:, 0], masks.sites), notes)


def _correlation(folders: Sequence[Path], tasks: Sequence[str], split: str) -> FigureWithTables:
    gates, notes = gates_of(_opened(folders), tasks)
    masks, left_out = final_masks(gates)
    if len(masks.seeds) < 3:
        left_out += (f"{len(masks.seeds)} seed{'s' * (len(masks.seeds) > 1)}: the diagonal needs three",)
    table = correlation_table(masks)
    beside = {"": table, "-overlap": task_overlaps(masks)}
    return FigureWithTables(correlation_matrix(table), (*notes, *left_out), beside)


def _one_history(folders: Sequence[Path], tasks: Sequence[str]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    if len(folders) != 1:
        raise InputError(f"this figure shows one run, {len(folders)} are given")
    return gates_of(_opened(folders), tasks)


def _gates(folders: Sequence[Path], tasks: Sequence[str], split: str) -> FigureWithTables:
    gates, notes = _one_history(folders, tasks)
    return FigureWithTables(gates_over_time(gates), notes)


def _masks(folders: Sequence[Path], tasks: Sequence[str], split: str) -> FigureWithTables:
    gates, notes = _one_history(folders, tasks)
    return FigureWithTables(mask_picture(gates), notes)


def animate(
    folders: Sequence[Path], tasks: Sequence[str], out: Path, shown: Shown = "masks"
) -> tuple[int, tuple[str, ...]]:
    """Write one run's masks or importance over time, as .gif or .webp; returns pictures and notes."""
    kind: Literal["gif", "webp"] = "gif" if out.suffix.lower() == ".gif" else "webp"
    if shown == "importance":
        history = importance_history(_importance(folders, tasks))
        with whole_file(out) as path:
            return animate_history(history, path, kind), ()
    gates, notes = _one_history(folders, tasks)
    with whole_file(out) as path:
        return animation(gates, path, kind), notes


def _importance(folders: Sequence[Path], tasks: Sequence[str]) -> pl.DataFrame:
    if len(folders) != 1:
        raise InputError(f"this figure shows one run, {len(folders)} are given")
    table = read_importance(Run.open(folders[0]))
    chosen = table.filter(pl.col("task").is_in(tasks)) if tasks else table
    if chosen.is_empty():
        known = ", ".join(table["task"].unique(maintain_order=True))
        raise InputError(f"{folders[0]} has importance over time for {known} only")
    return chosen


def _importance_over_time(folders: Sequence[Path], tasks: Sequence[str], split: str) -> FigureWithTables:
    table = _importance(folders, tasks)
    return FigureWithTables(importance_over_time(table), tables={"": table})


def _heads(paths: Sequence[Path], tasks: Sequence[str], measure: str) -> FigureWithTables:
    values, notes = worth_of(paths, tasks)
    check_measure(measure, values)
    means = head_means(with_groups(values), measure)
    return FigureWithTables(head_maps(means, measure, _unit(measure)), notes, {"": means})


def _unit(measure: str) -> str:
    points = measure in BY_NAME and BY_NAME[measure].unit == "points"
    return f"{measure}, points" if points else measure


def _prediction(paths: Sequence[Path], tasks: Sequence[str], measure: str) -> FigureWithTables:
    values, notes = worth_of(paths, tasks)
    check_measure(MEASURE, values)
    table = prediction(values)
    if table.is_empty():
        raise InputError("no run has a measure beside its ablation: 'mtl importance RUN' makes one")
    return FigureWithTables(prediction_dots(table), notes, {"": table})


def _agreement(paths: Sequence[Path], tasks: Sequence[str], measure: str) -> FigureWithTables:
    values, notes = worth_of(paths, tasks)
    check_measure(measure, values)
    table = agreement(with_groups(values), measure)
    if table.is_empty():
        raise InputError("there is one table only: give runs of several seeds or tasks, or several tables")
    return FigureWithTables(correlation_matrix(table, "spearman"), notes, {"": table})


def _labels(folders: Sequence[Path], tasks: Sequence[str], split: str) -> FigureWithTables:
    heads, notes = heads_of(folders, tasks)
    _one_task(heads)
    values = label_values(heads)
    return FigureWithTables(label_accuracy(values), (*notes, *absent_labels(values)), {"": values})


def _heatmap(folders: Sequence[Path], tasks: Sequence[str], split: str) -> FigureWithTables:
    heads, notes = heads_of(folders, tasks)
    _one_task(heads)
    regimes = sorted(set(heads["regime"]))
    if len(regimes) > 1:
        raise InputError(f"a heat map shows runs of one regime, and these are of {', '.join(regimes)}")
    values = skills(heads)
    return FigureWithTables(head_label_heatmap(values), notes, {"": values})


def _one_task(heads: pl.DataFrame) -> None:
    tasks = [task for task in heads["task"].unique(maintain_order=True) if task]
    if len(tasks) > 1:
        raise InputError(
            f"this figure shows one task: choose with --tasks=[{tasks[0]}] (or {', '.join(tasks[1:])})"
        )


def _heads_kept(folders: Sequence[Path], tasks: Sequence[str], split: str) -> FigureWithTables:
    default = TrainConfig()
    score: dict[str, str] = {task: getattr(default, task).score for task in TASK_NAMES}
    kept, notes = heads_kept_of(_opened(folders), split, score, tasks)
    return FigureWithTables(heads_kept(kept.table, kept.heads, score), notes, {"": kept.table})


def _curve(folders: Sequence[Path], tasks: Sequence[str], split: str) -> FigureWithTables:
    points, notes = curves_of(folders, tasks, split)
    figures = dict(points.select("task", "figure").unique(maintain_order=True).iter_rows())
    means = mean_curves(points, "score", ("task", "by", "trained_epochs"))
    return FigureWithTables(pruning_curves(points, figures), notes, {"": means})


def _curve_roles(folders: Sequence[Path], tasks: Sequence[str], split: str) -> FigureWithTables:
    survival, notes = role_survival_of(folders, tasks, split)
    means = mean_curves(survival, "surviving", ("by", "role"))
    return FigureWithTables(role_curves(survival), notes, {"": means})


def _curve_time(folders: Sequence[Path], tasks: Sequence[str], split: str) -> FigureWithTables:
    times, notes = times_of(folders, tasks)
    return FigureWithTables(time_curves(times), notes, {"": times})


_DRAW: dict[Name, Callable[[Sequence[Path], Sequence[str], str], FigureWithTables]] = {
    "rgb": _rgb,
    "grey": _grey,
    "correlation": _correlation,
    "gates": _gates,
    "masks": _masks,
    "labels": _labels,
    "heatmap": _heatmap,
    "heads-kept": _heads_kept,
    "curve": _curve,
    "curve-roles": _curve_roles,
    "curve-time": _curve_time,
    "importance-over-time": _importance_over_time,
}
_OF_MEASURE: dict[Name, Callable[[Sequence[Path], Sequence[str], str], FigureWithTables]] = {
    "heads": _heads,
    "prediction": _prediction,
    "agreement": _agreement,
}


def draw(
    name: Name,
    folders: Sequence[Path],
    tasks: Sequence[str] = (),
    split: str = "test",
    measure: str = MEASURE,
) -> FigureWithTables:
    """A figure by its name; raises `InputError` or `ValueError` if the runs are not what it needs."""
    if name in _OF_MEASURE:
        return _OF_MEASURE[name](folders, tasks, measure)
    return _DRAW[name](folders, tasks, split)


def save(drawn: FigureWithTables, out: Path, tables: bool = True) -> list[Path]:
    """Write the figure by its suffix (.pdf, .png, .svg) and its numbers beside it; returns the files."""
    kind = next(name for name in FORMATS if name == out.suffix.lower().removeprefix("."))
    contents = render(drawn.figure, kind)
    with whole_file(out) as path:
        path.write_bytes(contents)
    written = [out]
    for end, table in drawn.tables.items() if tables else ():
        for form in table_files.FORMATS:
            beside = out.with_name(f"{out.stem}{end}.{form}")
            with whole_file(beside) as path:
                table_files.write(table, path, form)
            written.append(beside)
    return written
