"""Figures of runs: what one is drawn from and what drawing returns; those of masks, and of what is measured.

The table of figures names the functions that draw.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
from jaxtyping import Bool, Float
from matplotlib.figure import Figure

from mtl.config.instances import kinds_in, named_scores
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.files import check_file_place, whole_file
from mtl.probes.appearance import ordered
from mtl.probes.figures.head_maps import (
    best_by_layer,
    best_label_of_heads,
    correlation_matrix,
    head_label_heatmap,
    head_maps,
    label_map,
    layer_lines,
)
from mtl.probes.figures.masks import (
    CHANNELS,
    animation,
    gates_over_time,
    grey_overlap,
    importance_history,
    importance_over_time,
    mask_picture,
    rgb_overlap,
    write_animation,
)
from mtl.probes.figures.scores import heads_kept, label_accuracy, prediction_dots
from mtl.probes.figures.style import FORMATS, render
from mtl.probes.measures.groups import BY_NAME, SKILLS
from mtl.probes.sites import KEYS, Site
from mtl.probes.statistics.head_values import (
    ABLATION,
    SKILL_UNITS,
    VALUE_UNITS,
    absent_labels,
    agreement,
    head_means,
    label_values,
    prediction,
    skills,
)
from mtl.probes.statistics.head_values import AGREEMENT_UNITS as AGREEMENT_UNITS
from mtl.probes.statistics.head_values import PREDICTION_UNITS as PREDICTION_UNITS
from mtl.probes.statistics.masks import (
    CORRELATION_UNITS,
    OVERLAP_UNITS,
    correlation_table,
    final_masks,
    mostly_forced,
    task_overlaps,
)
from mtl.probes.tables import table_files
from mtl.probes.tables.heads_table import last_gates, open_heads_by_mask, printed_best_heads
from mtl.probes.tables.table_files import OF_MEASURES, ColumnUnit, Units, by_catalogue
from mtl.runs.compare.comparable import gates_of, note_averages, shares_mask
from mtl.runs.compare.heads import check_measure, heads_of, with_groups, worth_of
from mtl.runs.compare.run_set import MeasuredHeads, RunSet, RunWithSetup
from mtl.runs.compare.scores import heads_kept_of, learned_nothing
from mtl.runs.folder.run import Run
from mtl.runs.folder.run_tables import read_importance
from mtl.tasks.in_words import counted


@dataclass(frozen=True)
class FigureRequest:
    """What a figure is drawn from; each figure uses what it needs."""

    paths: Sequence[Path]
    """Folders of runs; for figures of worth, also tables."""
    tasks: Sequence[str]
    """Only these tasks; empty: all."""
    split: str
    """Split of the scores."""
    measure: str
    """The measure on heads."""

    def one_path(self) -> Path:
        """The only path, for a figure of one run; raises `InputError` if there are several."""
        if len(self.paths) != 1:
            raise InputError(f"this figure shows one run, not {len(self.paths)}")
        return self.paths[0]


@dataclass(frozen=True)
class FigureWithTables:
    """A figure with notes and its numbers."""

    figure: Figure
    notes: tuple[str, ...] = ()
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """The numbers, by what is added to the stem of the figure's file name: '' or `-heads`."""
    printed: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """What is written as LaTeX instead of a table that is too long to be printed."""
    units: Mapping[str, Units] = field(default_factory=dict)
    """The units of the columns of each table, and of what is printed instead."""
    paper: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The columns of LaTeX, if not all (`table_files.in_print`)."""
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Titles of columns of LaTeX that are printed as they are (`table_files.latex`)."""


def save(drawn: FigureWithTables, out: Path, tables: bool = True, sources: Sequence[Path] = ()) -> list[Path]:
    """Write the figure by its suffix (.pdf, .png, .svg) and its numbers beside it; returns the files.

    Each file holds the notes. Raises as `check_tables` does, before anything is written.
    """
    kind = next(name for name in FORMATS if name == out.suffix.lower().removeprefix("."))
    if tables:
        check_tables(out, drawn.tables, sources)
    contents = render(drawn.figure, kind, notes=drawn.notes)
    with whole_file(out) as path:
        path.write_bytes(contents)
    written = [out]
    for end, table in drawn.tables.items() if tables else ():
        for form in table_files.FORMATS:
            beside = out.with_name(f"{out.stem}{end}.{form}")
            with whole_file(beside) as path:
                shown = drawn.printed.get(end, table) if form == "tex" else table
                table_files.write_table_file(
                    shown,
                    path,
                    form,
                    notes=drawn.notes,
                    units=drawn.units.get(end, {}),
                    paper=drawn.paper.get(end, ()),
                    names=drawn.names.get(end, {}),
                )
            written.append(beside)
    return written


def check_tables(out: Path, ends: Iterable[str], sources: Sequence[Path] = ()) -> None:
    """Raise `InputError` or `OSError` if a table beside a figure cannot be written.

    `ends` are added to the stem of `out`. A table may replace neither one that the figure is drawn from
    (`sources`) nor a file that no figure wrote, such as a run's heads.parquet beside RUN/heads.png, or a
    user's own heads.tex that includes heads.pdf.
    """
    known = {source.resolve() for source in sources}
    for end in ends:
        paths = [out.with_name(f"{out.stem}{end}.{form}") for form in table_files.FORMATS]
        of_figure = _is_table(out.with_name(f"{out.stem}{end}.tex"))
        for path in paths:
            check_file_place(path)
            if path.resolve() in known or (path.exists() and not of_figure):
                raise InputError(
                    f"the figure's numbers would replace {path}: give another --out, or --tables=false"
                )


def _is_table(path: Path) -> bool:
    """Whether a LaTeX file is a table of a figure: these, and only these, begin with `tabular`."""
    return path.is_file() and path.read_bytes().startswith(rb"\begin{tabular}")


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
        of_task = _Channels(masks.tasks, masks.mean(), masks.claimed(), (opened, closed))
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
    of_runs = _Channels(channels, masks.gate[0], opened, forced)
    return _rgb(of_runs, masks.sites, notes)


class _Channels(NamedTuple):
    """The three masks of an RGB picture."""

    names: Sequence[str]
    gates: Float[np.ndarray, "3 site head"]
    kept: Bool[np.ndarray, "3 site head"]
    forced: tuple[Bool[np.ndarray, "3 site head"], Bool[np.ndarray, "3 site head"]]

    def ordered(self) -> _Channels:
        """The masks in the chosen order (`mtl.probes.appearance`)."""
        names = ordered(self.names)
        places = [self.names.index(name) for name in names]
        forced = self.forced[0][places], self.forced[1][places]
        return _Channels(names, self.gates[places], self.kept[places], forced)


def _rgb(channels: _Channels, sites: Sequence[Site], notes: tuple[str, ...]) -> FigureWithTables:
    channels = channels.ordered()
    drawn = rgb_overlap(channels.gates, sites, channels.names, channels.kept, channels.forced)
    each = zip(channels.names, channels.gates, channels.kept, *channels.forced, strict=True)
    rows = pl.concat(_rows(sites, *mask) for mask in each)
    return FigureWithTables(drawn, notes, {"": rows}, {"": open_heads_by_mask(rows, "mask")}, _OF_GATES)


def _rows(
    sites: Sequence[Site],
    mask: str,
    gate: Float[np.ndarray, "site head"],
    kept: Bool[np.ndarray, "site head"],
    opened: Bool[np.ndarray, "site head"],
    closed: Bool[np.ndarray, "site head"],
) -> pl.DataFrame:
    """A mask as rows: mask, attention, layer, head, gate, kept, and whether this was forced."""
    forced = (kept & opened) | (~kept & closed)
    rows = [
        (mask, *site, head, float(gate[place, head]), bool(kept[place, head]), bool(forced[place, head]))
        for place, site in enumerate(sites)
        for head in range(gate.shape[1])
    ]
    return pl.DataFrame(rows, ("mask", *KEYS, "gate", "kept", "forced"), orient="row")


def grey(request: FigureRequest) -> FigureWithTables:
    """The share of all masks that keep a head open."""
    gates, notes = _gates(request, averaged=True, once=True)
    by_run = gates.with_columns(task=pl.format("{} {}", "run", "task"), seed=pl.lit(0))
    masks, _ = final_masks(by_run)
    gate, opened, learned = masks.gate[:, 0], masks.opened[:, 0], masks.learned[:, 0]
    rows = [
        (*site, head, float(gate[:, place, head].mean()), int(opened[:, place, head].sum()),
         *(int(by_force[:, place, head].sum()) for by_force in (opened & ~learned, ~opened & learned)),
         len(gate))
        for place, site in enumerate(masks.sites)
        for head in range(gate.shape[2])
    ]  # fmt: skip
    columns = (*KEYS, "mean_gate", "kept", "opened_by_force", "closed_by_force", "masks")
    used = pl.DataFrame(rows, columns, orient="row")
    drawn = grey_overlap(gate, masks.sites, mostly_forced(opened, learned))
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
    forced = pl.col("open") != pl.col("learned")
    numbers = by_catalogue(last_gates(gates).select("task", *KEYS, "gate", "open", forced=forced))
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
    runs = RunSet.open(request.paths)
    masked = runs.where(lambda run: run.has("gates.parquet"))
    if averaged:
        runs.check_encoders()
        alike = (masked.without_repeats() if once else masked).like_most()
        runs -= masked - alike
    else:
        masked.note_differences()
    gates = gates_of(runs, request.tasks)
    masks = gates.group_by("run", maintain_order=True).agg(pl.col("task").unique())
    drawn = {run: {task for mask in of_run for task in mask.split("+")} for run, of_run in masks.iter_rows()}
    runs.notes += [line for run in runs for line in _unlearned(run, drawn.get(run.name, frozenset()))]
    return gates, tuple(runs.notes)


def _unlearned(run: RunWithSetup, drawn: Collection[str]) -> Iterator[str]:
    """A note on each of the tasks `drawn` that a run has learned nothing of: what its mask then means."""
    scores = {name: kind.score for name, kind in kinds_in(run.config).items()}
    nothing = learned_nothing(run.metrics, scores)
    others = [task for task in run.config["tasks"] if task not in nothing] if shares_mask(run.config) else []
    means = f"it shares the mask of {', '.join(others)}" if others else "its mask claims no head"
    for task, line in nothing.items():
        if task in drawn:
            yield f"{run.name}: {line}: {means}"


def against_open_heads(request: FigureRequest) -> FigureWithTables:
    """The score of each run against the heads that its masks keep open."""
    runs = RunSet.open(request.paths)
    score = {**named_scores(run.config for run in runs), **TrainConfig().main_scores()}
    kept = heads_kept_of(runs, request.split, score, request.tasks)
    return FigureWithTables(
        heads_kept(kept.table, kept.heads, score),
        tuple(runs.notes),
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
    folders = [path for path in request.paths if (path / "config.yaml").exists()]
    bare = [MeasuredHeads(path / "heads.parquet") for path in request.paths if path not in folders]
    runs = RunSet.of(map(Run.open, folders), bare=bare)
    heads = heads_of(runs, request.tasks)
    tasks = [task for task in heads["task"].unique(maintain_order=True) if task]
    if len(tasks) > 1:
        raise InputError(
            f"this figure shows one task: choose with --tasks=[{tasks[0]}] (or {', '.join(tasks[1:])})"
        )
    used = set(heads.filter(pl.col("measure").is_in(list(SKILLS)))["run"].unique())
    if not used:
        raise InputError("none of these was probed: run 'mtl probe' on them first")
    others = sorted(set(heads["run"].unique()) - used)
    runs.notes += [f"{run} was not probed: left out; 'mtl probe' does it" for run in others]
    heads = heads.filter(pl.col("run").is_in(list(used)))
    note_averages(RunSet.of((run.run for run in runs if run.name in used), runs.notes), heads)
    return heads, tuple(runs.notes)


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
