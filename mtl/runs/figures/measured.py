"""Figures of what is measured: scores, labels, worth and importance of heads."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from mtl.config.instances import named_scores
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.files import whole_file
from mtl.probes.figures.head_maps import correlation_matrix, head_label_heatmap, head_maps
from mtl.probes.figures.history import importance_history, importance_over_time, write_animation
from mtl.probes.figures.labels_of_heads import best_by_layer, best_label_of_heads, label_map, layer_lines
from mtl.probes.figures.scores import heads_kept, label_accuracy, prediction_dots
from mtl.probes.measures.groups import BY_NAME, SKILLS
from mtl.probes.statistics.head_values import ABLATION, agreement, head_means, prediction
from mtl.probes.statistics.head_values import AGREEMENT_UNITS as AGREEMENT_UNITS
from mtl.probes.statistics.head_values import PREDICTION_UNITS as PREDICTION_UNITS
from mtl.probes.statistics.skill import SKILL_UNITS, VALUE_UNITS, absent_labels, label_values, skills
from mtl.probes.tables.label_scores import printed_best_heads
from mtl.probes.tables.table_files import OF_MEASURES, ColumnUnit
from mtl.runs.compare.comparable import note_averages, with_setups
from mtl.runs.compare.heads import check_measure, heads_of, with_groups, worth_of
from mtl.runs.compare.scores import heads_kept_of
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables
from mtl.runs.folder.run import Run
from mtl.runs.folder.run_tables import read_importance


def against_open_heads(request: FigureRequest) -> FigureWithTables:
    """The score of each run against the heads that its masks keep open."""
    runs, left_out = request.runs()
    score = {**named_scores(run.config() for run in runs), **TrainConfig().main_scores()}
    kept, notes = heads_kept_of(runs, request.split, score, request.tasks)
    notes = (*left_out, *notes)
    return FigureWithTables(
        heads_kept(kept.table, kept.heads, score),
        notes,
        {"": kept.table},
        units={"": ColumnUnit.PERCENT.of("score")},
    )


def labels(request: FigureRequest) -> FigureWithTables:
    """The best head per label and regime."""
    heads, notes = _heads_of_one_task(request)
    values = label_values(heads)
    all_notes = (*notes, *absent_labels(values))
    return FigureWithTables(label_accuracy(values), all_notes, {"": values}, units={"": VALUE_UNITS})


def heatmap(request: FigureRequest) -> FigureWithTables:
    """Heads by labels, of runs of one regime."""
    values, notes = _skills_of_one_regime(request)
    return FigureWithTables(
        head_label_heatmap(values), notes, {"": values}, {"": printed_best_heads(values)}, {"": SKILL_UNITS}
    )


def label_in_cells(request: FigureRequest) -> FigureWithTables:
    """The best label of every head, of runs of one regime."""
    values, notes = _skills_of_one_regime(request)
    table = best_label_of_heads(values)
    return FigureWithTables(label_map(values), notes, {"": table}, units={"": SKILL_UNITS})


def by_layer(request: FigureRequest) -> FigureWithTables:
    """Accuracy by layer, a line for each label, of runs of one regime."""
    values, notes = _skills_of_one_regime(request)
    table = best_by_layer(values)
    return FigureWithTables(layer_lines(values), notes, {"": table}, units={"": SKILL_UNITS})


def _skills_of_one_regime(request: FigureRequest) -> tuple[pl.DataFrame, tuple[str, ...]]:
    heads, notes = _heads_of_one_task(request)
    regimes = sorted(set(heads["regime"]))
    if len(regimes) > 1:
        raise InputError(f"this figure shows runs of one regime, and these are of {', '.join(regimes)}")
    return skills(heads), notes


def _heads_of_one_task(request: FigureRequest) -> tuple[pl.DataFrame, tuple[str, ...]]:
    heads, notes = heads_of(request.paths, request.tasks)
    tasks = [task for task in heads["task"].unique(maintain_order=True) if task]
    if len(tasks) > 1:
        raise InputError(
            f"this figure shows one task: choose with --tasks=[{tasks[0]}] (or {', '.join(tasks[1:])})"
        )
    used = set(heads.filter(pl.col("measure").is_in(list(SKILLS)))["run"].unique())
    if not used:
        raise InputError("none of these was probed: run 'mtl probe' on them first")
    others = sorted(set(heads["run"].unique()) - used)
    notes = (*notes, *(f"{run} was not probed: left out; 'mtl probe' does it" for run in others))
    heads = heads.filter(pl.col("run").is_in(list(used)))
    runs = [Run(path) for path in request.paths if str(path) in used and (path / "config.yaml").exists()]
    averages: list[str] = []
    note_averages(with_setups(runs), heads, averages)
    return heads, (*notes, *averages)


def maps(request: FigureRequest) -> FigureWithTables:
    """A measure per head, task and setup."""
    measure = request.measure
    values, notes = worth_of(request.paths, request.tasks)
    notes = (*notes, *check_measure(measure, values))
    means = head_means(with_groups(values), measure)
    kind = BY_NAME[measure].unit if measure in BY_NAME else "number"
    axis = f"{measure}, {kind}" if kind in ("points", "nats") else measure
    unit = OF_MEASURES[kind]
    return FigureWithTables(head_maps(means, measure, axis), notes, {"": means}, units={"": unit.of("value")})


def predictions(request: FigureRequest) -> FigureWithTables:
    """How well each measure predicts ablation."""
    values, notes = worth_of(request.paths, request.tasks)
    notes = (*notes, *check_measure(ABLATION, values))
    table = prediction(values)
    if table.is_empty():
        raise InputError("no run has a measure beside its ablation: 'mtl importance RUN' makes one")
    return FigureWithTables(prediction_dots(table), notes, {"": table}, units={"": PREDICTION_UNITS})


def agreements(request: FigureRequest) -> FigureWithTables:
    """The correlation of one measure between seeds, tasks and tables."""
    values, notes = worth_of(request.paths, request.tasks)
    notes = (*notes, *check_measure(request.measure, values))
    table = agreement(with_groups(values), request.measure)
    if table.is_empty():
        raise InputError("there is one table only: give runs of several seeds or tasks, or several tables")
    drawn = correlation_matrix(table, "spearman")
    return FigureWithTables(drawn, notes, {"": table}, units={"": AGREEMENT_UNITS})


def draw_importance(request: FigureRequest) -> FigureWithTables:
    """Importance of the heads at each evaluation."""
    table = _importance(request)
    units = {"": ColumnUnit.NATS.of("value")}
    return FigureWithTables(importance_over_time(table), tables={"": table}, units=units)


def animate_importance(
    request: FigureRequest, out: Path, kind: Literal["gif", "webp"]
) -> tuple[int, tuple[str, ...]]:
    """Write importance over training as a moving figure; returns the number of pictures, and notes."""
    history = importance_history(_importance(request))
    with whole_file(out) as path:
        return write_animation(history, path, kind), ()


def _importance(request: FigureRequest) -> pl.DataFrame:
    folder = request.one_path()
    table = read_importance(Run.open(folder))
    known = table["task"].unique(maintain_order=True).to_list()
    if unknown := [name for name in request.tasks if name not in known]:
        raise InputError(f"{folder} has importance over time for {', '.join(known)}, not for {unknown[0]}")
    return table.filter(pl.col("task").is_in(request.tasks or known))
