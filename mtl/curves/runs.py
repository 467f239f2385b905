"""Pruning curves of several runs, read from their folders, and figures of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from mtl.errors import InputError, as_input_error
from mtl.probes.curves import curve_table
from mtl.probes.curves.curve_table import UNITS, surviving_kinds, surviving_roles
from mtl.probes.curves.figures import kind_curves, mean_curves, pruning_curves, role_curves, time_curves
from mtl.probes.measures.groups import MADE_BY_PROBING
from mtl.probes.report.data import ClaimingSetup, ReportData
from mtl.probes.statistics.head_values import heads_with_roles
from mtl.probes.tables import heads_table
from mtl.probes.tables.table_files import ColumnUnit
from mtl.runs.compare.heads import check_probed_alike, probed_with
from mtl.runs.compare.run_set import RunSet
from mtl.runs.compare.settings import settings_of_run
from mtl.runs.compare.setups import chosen_of
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables
from mtl.runs.folder.run import Run, is_probed_encoder
from mtl.runs.report.gather import RunsRead
from mtl.tasks.in_words import counted

FIRST = ("importance", "recomputed", "greedy", "random")
"""The order of methods in figures; others come after them."""
_OF_SCORES = {"": ColumnUnit.PERCENT.of("percent", "score", "spread")}
_OF_HEADS = {"": ColumnUnit.PERCENT.of("percent") | ColumnUnit.SHARE.of("surviving", "spread")}


def curves_of(
    folders: Sequence[Path], tasks: Sequence[str], split: str
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """All points of the runs' curves with a column `run`, and notes on runs that have none.

    Figures average over runs, so runs that were made otherwise than most are left out and noted. Raises
    `InputError` if no run has curves of these tasks on the split.
    """
    parts, notes = _tables(folders, "curve.parquet", tasks)
    points = pl.concat(parts)
    splits = list(points["split"].unique(maintain_order=True))
    points = points.filter(pl.col("split") == split)
    if points.is_empty():
        raise InputError(f"the curves are scored on {', '.join(splits)}, not on {split}: choose with --split")
    return points, notes


def epoch_curves_of(
    folders: Sequence[Path], tasks: Sequence[str], split: str
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """All points of curves after epochs (`mtl curve --epoch=N`), with columns `run` and `epoch`; and notes.

    Raises `InputError` if no run has such curves.
    """
    by_epoch: dict[int, list[Path]] = {}
    notes: list[str] = []
    for folder in folders:
        found = (Run.open(folder).folder / "curve").glob("epoch-*/curve.parquet")
        made = {int(path.parent.name.removeprefix("epoch-")): path.parent for path in found}
        if not made:
            notes.append(
                f"{folder} has no curves after epochs: left out; 'mtl curve {folder} --epoch=N' makes one"
            )
        for epoch, path in made.items():
            by_epoch.setdefault(epoch, []).append(path)
    if not by_epoch:
        raise InputError("; ".join([*notes, "nothing to draw"]))
    read: dict[str, tuple[pl.DataFrame, Mapping[str, str]]] = {}
    for epoch, paths in sorted(by_epoch.items()):
        points, more = curves_of(paths, tasks, split)
        notes += more
        for folder in points["run"].unique(maintain_order=True):
            rows = points.filter(pl.col("run") == folder, pl.col("by") != "gates")
            _, provenance = curve_table.read_curve_table(Path(folder) / "curve.parquet")
            read[folder] = rows.with_columns(epoch=pl.lit(epoch)), provenance
    alike, otherwise = _measured_alike(read)
    return pl.concat(alike.values()), (*notes, *otherwise)


def role_survival_of(
    folders: Sequence[Path], tasks: Sequence[str], split: str
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """How many heads of each role the curves keep (`surviving_roles`), with a column `run`; and notes.

    Raises `InputError` if no run has both curves and probed roles, or if runs were not probed alike.
    """
    points, notes = curves_of(folders, tasks, split)
    parts, without = [], []
    probed: dict[str, dict[str, str]] = {}
    for folder in points["run"].unique(maintain_order=True):
        path = Path(folder) / "heads.parquet"
        try:
            heads, provenance = heads_table.read_heads_table(path)
            orders, _ = curve_table.read_curve_table(Path(folder) / "curve_heads.parquet")
        except ValueError as error:
            without.append(f"left out: {error}")
            continue
        probed[folder] = probed_with(provenance, settings_of_run(Run(Path(folder))).masked)
        rows = surviving_roles(orders, points.filter(pl.col("run") == folder), heads_with_roles(heads))
        if rows.is_empty():
            probes = bool(heads["measure"].is_in(MADE_BY_PROBING).any())
            fix = "" if probes else f"; 'mtl probe {folder}' measures roles"
            without.append(f"{folder}: no head has a known role: left out{fix}")
        parts.append(rows.with_columns(run=pl.lit(folder)))
    if not any(part.height for part in parts):
        raise InputError("; ".join([*without, "nothing to draw"]))
    check_probed_alike(probed)
    return pl.concat(parts), (*notes, *without)


def kind_survival_of(
    folders: Sequence[Path], tasks: Sequence[str], split: str
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """How many heads of each kind of attention the curves keep (`surviving_kinds`), by `run`; and notes.

    Raises `InputError` if no run has curves and several kinds of attention.
    """
    points, notes = curves_of(folders, tasks, split)
    parts, without = [], []
    for folder in points["run"].unique(maintain_order=True):
        try:
            orders, _ = curve_table.read_curve_table(Path(folder) / "curve_heads.parquet")
        except ValueError as error:
            without.append(f"left out: {error}")
            continue
        if orders["attention"].n_unique() < 2:
            without.append(f"{folder}: all heads are of one kind of attention: left out")
            continue
        rows = surviving_kinds(orders, points.filter(pl.col("run") == folder))
        parts.append(rows.with_columns(run=pl.lit(folder)))
    if not parts:
        raise InputError("; ".join([*without, "nothing to draw"]))
    return pl.concat(parts), (*notes, *without)


def points_of_report(read: RunsRead) -> tuple[pl.DataFrame | None, Sequence[str]]:
    """The points of all curves in these runs' folders, with run and setup; `None` if there are none."""
    points, notes = [], list[str]()
    found: dict[str, dict[str, tuple[pl.DataFrame, Mapping[str, str]]]] = {}
    for run in read.runs:
        folder = run.folder
        if (folder / "curve.parquet").is_file():
            try:
                made = curve_table.read_curve_table(folder / "curve.parquet")
            except ValueError as error:
                notes.append(f"{folder}: its pruning curves are left out: {error}")
                continue
            found.setdefault(run.setup.name, {})[str(folder)] = made
    tables: dict[str, pl.DataFrame] = {}
    for of_setup in found.values():
        alike, otherwise = _measured_alike(of_setup)
        tables |= alike
        notes += otherwise
    for run in read.runs:
        folder = run.folder
        table = tables.get(str(folder))
        if table is None or table.is_empty():
            continue
        of_run = {"run": pl.lit(str(folder)), "setup": pl.lit(run.setup.name)}
        try:
            curve_table.read_curve_table(folder / "curve_heads.parquet")
        except ValueError as error:
            notes.append(f"{folder}: its pruning curves are left out: {error}")
            continue
        scored = curve_table.in_method_order(table.filter(pl.col("split") == read.split), FIRST)
        if scored.is_empty():
            notes.append(f"{folder}: its pruning curves are left out: none is scored on {read.split}")
            continue
        points.append(scored.with_columns(**of_run))
    return pl.concat(points) if points else None, notes


def kinds_of_report(read: RunsRead) -> tuple[pl.DataFrame | None, Sequence[str]]:
    """The shares kept of kinds of attention (`surviving_kinds`), with run and setup; `None` for one kind."""
    kinds = []
    points = read.tables.get("pruning-curves")
    if points is None:
        return None, ()
    for (run, setup), scored in points.group_by("run", "setup", maintain_order=True):
        orders, _ = curve_table.read_curve_table(Path(str(run)) / "curve_heads.parquet")
        if orders["attention"].n_unique() > 1:
            survival = surviving_kinds(orders, scored.drop("run", "setup"))
            kinds.append(survival.with_columns(run=pl.lit(run), setup=pl.lit(setup)))
    return pl.concat(kinds) if kinds else None, ()


def runs_of_figures(data: ReportData, claims: ClaimingSetup | None) -> dict[str, list[Path]]:
    """The runs of the figures that a report draws."""
    points = data.evidence.get("pruning-curves")
    if points is None:
        return {}
    runs = [Path(run) for run in points["run"].unique(maintain_order=True)]
    return dict.fromkeys(("curve", *(("curve-kinds",) if "pruning-kinds" in data.evidence else ())), runs)


def times_of(folders: Sequence[Path], tasks: Sequence[str]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """All rows of the runs' curve_time.parquet with a column `run`, and notes on runs that have none.

    Figures average over runs, so runs that were measured on another device than most are left out. Raises
    `InputError` if no run has times of these tasks.
    """
    parts, notes = _tables(folders, "curve_time.parquet", tasks)
    times = pl.concat(parts)
    devices = times.group_by("device", maintain_order=True).agg(pl.col("run").unique(maintain_order=True))
    devices = devices.sort(pl.col("run").list.len(), descending=True, maintain_order=True)
    usual = devices["device"][0]
    others = tuple(
        f"{', '.join(runs)}: measured on {device}, and most on {usual}: left out"
        for device, runs in devices[1:].iter_rows()
    )
    return times.filter(device=usual), (*notes, *others)


def draw_curves(request: FigureRequest) -> FigureWithTables:
    """Pruning curves: scores against heads kept."""
    points, notes = curves_of(request.paths, request.tasks, request.split)
    figures = dict(points.select("task", "figure").unique(maintain_order=True).iter_rows())
    means = mean_curves(points, "score", ("task", "by", "trained_epochs"))
    return FigureWithTables(pruning_curves(points, figures), notes, {"": means}, units=_OF_SCORES)


def draw_curve_epochs(request: FigureRequest) -> FigureWithTables:
    """Pruning curves after epochs of the training, a line for each."""
    points, notes = epoch_curves_of(request.paths, request.tasks, request.split)
    figures = dict(points.select("task", "figure").unique(maintain_order=True).iter_rows())
    lines = points.with_columns(by=pl.format("{}, epoch {}", "by", "epoch"))
    means = mean_curves(points, "score", ("task", "by", "trained_epochs", "epoch"))
    figure = pruning_curves(lines, figures, known=list(lines["by"].unique(maintain_order=True)))
    return FigureWithTables(figure, notes, {"": means}, units=_OF_SCORES)


def draw_curve_roles(request: FigureRequest) -> FigureWithTables:
    """Heads with a role that survive along pruning curves."""
    survival, notes = role_survival_of(request.paths, request.tasks, request.split)
    means = mean_curves(survival, "surviving", ("by", "role"))
    return FigureWithTables(role_curves(survival), notes, {"": means}, units=_OF_HEADS)


def draw_curve_kinds(request: FigureRequest) -> FigureWithTables:
    """Heads of each kind of attention that are kept along pruning curves."""
    survival, notes = kind_survival_of(request.paths, request.tasks, request.split)
    means = mean_curves(survival, "surviving", ("by", "attention"))
    return FigureWithTables(kind_curves(survival), notes, {"": means}, units=_OF_HEADS)


def draw_curve_times(request: FigureRequest) -> FigureWithTables:
    """Time per sentence of cut models along pruning curves."""
    table, notes = times_of(request.paths, request.tasks)
    return FigureWithTables(time_curves(table), notes, {"": table}, units={"": UNITS})


def _tables(
    folders: Sequence[Path], name: str, tasks: Sequence[str]
) -> tuple[list[pl.DataFrame], tuple[str, ...]]:
    read: dict[str, tuple[pl.DataFrame, Mapping[str, str]]] = {}
    notes: list[str] = []
    found: list[Run] = []
    for folder in folders:
        if is_probed_encoder(folder):
            notes.append(f"{folder} holds probes of an encoder, and no run: left out")
            continue
        run = Run.open(folder)
        path = run.folder / name
        if not path.is_file():
            several = " --task=TASK" if len(run.config()["tasks"]) > 1 else ""
            option = "" if name == "curve.parquet" else f" --cut{several}"
            notes.append(f"{folder} has no {name}: left out; 'mtl curve {folder}{option}' makes it")
            continue
        with as_input_error():
            table, provenance = curve_table.read_curve_table(path)
        known = list(table["task"].unique(maintain_order=True))
        chosen = chosen_of(known, tasks, str(folder), notes)
        if not chosen:
            continue
        table = table.filter(pl.col("task").is_in(chosen))
        found.append(run)
        read[str(folder)] = table, provenance
    if not read:
        raise InputError("; ".join([*notes, "nothing to draw"]))
    runs = RunSet.of(found, notes)
    runs.check_encoders()
    together = _trained_together(runs.without_repeats().like_most())
    parts, otherwise = _measured_alike({run.name: read[run.name] for run in together})
    tables = [
        curve_table.in_method_order(table, FIRST).with_columns(run=pl.lit(run))
        for run, table in parts.items()
    ]
    return tables, (*notes, *otherwise)


def _measured_alike(
    read: Mapping[str, tuple[pl.DataFrame, Mapping[str, str]]],
) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """By run, the curves that were made like most of their method and task; and notes on the others."""
    settings: dict[tuple[str, str], dict[str, str]] = {}
    for run, (_, provenance) in read.items():
        for curve, made in curve_table.curve_settings(provenance).items():
            settings.setdefault(curve, {})[run] = made
    tables, notes = {run: table for run, (table, _) in read.items()}, []
    for (by, task), of_runs in settings.items():
        [(usual, _)] = Counter(of_runs.values()).most_common(1)
        for run, made in of_runs.items():
            if made != usual:
                tables[run] = tables[run].filter((pl.col("by") != by) | (pl.col("task") != task))
                notes.append(
                    f"{run}: its curve of {task} by {by} has {made}, and most have {usual}: left out"
                )
    return tables, notes


def _trained_together(runs: RunSet) -> RunSet:
    """The largest group of runs, either of single tasks or of one set of tasks; the others are noted.

    Curves are averaged over runs, and a task that is trained alone differs from one that is trained jointly.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        groups.setdefault(() if run.setup.single else run.settings.tasks, []).append(run.name)
    order = sorted(groups, key=lambda tasks: (-len(groups[tasks]), len(tasks), tasks))
    runs.notes += [
        f"{counted(len(groups[tasks]), 'run')} of {_together(tasks)} left out of curves of "
        f"{_together(order[0])}: {', '.join(groups[tasks])}"
        for tasks in order[1:]
    ]
    return runs.where(lambda run: run.name in groups[order[0]])


def _together(tasks: tuple[str, ...]) -> str:
    return f"{'+'.join(tasks)} jointly" if tasks else "tasks alone"
