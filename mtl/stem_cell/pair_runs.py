"""Pair runs without masks, from which the contest is read, with masked runs of single tasks beside them; the
laboratory's tables and figures of them.

A table is `None` if the runs have nothing for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mtl.config.instances import kinds_in
from mtl.errors import InputError
from mtl.probes.report.data import ClaimingSetup, ReportData
from mtl.probes.sites import KEYS
from mtl.probes.statistics.masks import Masks, final_masks
from mtl.probes.stem_cell.competition import CONFLICT_UNITS, conflict_by_claims, of_pairs, of_twins
from mtl.probes.stem_cell.contest import CONTROL, FEWEST_SEEDS, TWIN, contest_cells
from mtl.probes.stem_cell.contest_table import (
    COLUMNS,
    IMPORTANCE,
    LINE_UNITS,
    claims_table,
    estimates,
    head_lines,
    learned_claims,
    side_means,
    task_means,
    worth_table,
)
from mtl.probes.stem_cell.figures import conflict_figure, contest_figure, forest
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import weighted_mean
from mtl.runs.compare.comparable import masks_of
from mtl.runs.compare.heads import measured_otherwise, worth_of_run
from mtl.runs.compare.run_set import RunSet
from mtl.runs.compare.settings import MASKS, keys_in_words
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables
from mtl.runs.report.gather import RunsRead
from mtl.tasks.catalogue import TASKS
from mtl.tasks.task import Task

PAIRS = pl.Schema(
    {
        "run": pl.String, "setup": pl.String, "seed": pl.Int64, "task": pl.String, "of": pl.String,
        "partner": pl.String,
    }
)  # fmt: skip
"""A row per pair run and task: `task` as the run names it, `of` the task that a twin is half of (else the
same), `partner` another task, `control` or `twin`."""


def pairs_of(runs: RunSet) -> pl.DataFrame | None:
    """A row per pair run and task (`PAIRS`); `None` if there are no pair runs without masks.

    A control task has no row, and neither has a run that repeats another one. If pairs were trained in
    several ways (more updates, other rates), the way with the most pairs of tasks is taken; among equals the
    one with the fewest settings that are not neutral. Notes say which runs are left out, and why.
    """
    plain = runs.where(lambda run: run.settings.plain and len(run.settings.tasks) == 2).without_repeats()
    if not plain:
        return None
    pairs = {run.name: run.settings for run in plain}

    def rank(name: str) -> tuple[int, int, str]:
        alike = {other.tasks for other in pairs.values() if not pairs[name].differing(other)}
        return -len(alike), len(pairs[name].set_keys), pairs[name].identity

    rows = []
    for run in plain.like_most(like=[min(pairs, key=rank)], about="the contest: "):
        tasks = run.settings.tasks
        kinds = kinds_in(run.config)
        if taken := [name for name, kind in kinds.items() if name in (CONTROL, TWIN) and not kind.drawn]:
            runs.notes.append(
                f"the contest: {run.name} has a task named {taken[0]}, a name that stands for a kind "
                "of partner: left out"
            )
            continue
        for task, other in (tasks, reversed(tasks)):
            of, partner = (_learned(name, kinds[name]) for name in (task, other))
            partner = TWIN if partner == of else partner
            if of != CONTROL:
                rows.append((run.name, run.setup.name, run.settings.seed, task, of, partner))
    return pl.DataFrame(rows, schema=PAIRS, orient="row") if rows else None


def note_claims_unlike_pairs(runs: RunSet, gates: pl.DataFrame | None, pairs: pl.DataFrame | None) -> None:
    """Note which setups of claims differ from the pairs in more than their masks."""
    if gates is None or pairs is None:
        return
    masked, paired = set(gates["run"]), set(pairs["run"])
    settings = {run.name: run.settings for run in runs}
    notes: dict[str, None] = {}
    for run in runs:
        if run.setup.single and run.name in masked:
            unlike = {
                key: None for pair in sorted(paired) for key in run.settings.differing(settings[pair], MASKS)
            }
            if unlike:
                keys, name = keys_in_words([*unlike]), run.setup.name
                notes[f"the contest: claims of {name} are of runs with another {keys} than the pairs"] = None
    runs.notes += notes


def cosines_of(runs: RunSet, pairs: pl.DataFrame) -> pl.DataFrame | None:
    """The mean cosine per head over all recorded updates; `None` if no run has recorded any.

    The columns are attention, layer, head, cosine, first, second (the tasks; equal for twins) and seed.
    `pairs` is the table `pairs_of(runs)`. Raises `InputError` for a file that cannot be read.
    """
    parts, of_name = [], {run.name: run for run in runs}
    for (name,), of_run in pairs.group_by("run", maintain_order=True):
        run = of_name[str(name)]
        if not run.has("heads.parquet"):
            continue
        heads, _ = run.heads.read
        rows = heads.filter((pl.col("measure") == "gradient_conflict") & (pl.col("count") > 0))
        rows = heads_table.in_texts(rows)
        names = of_run.sort("task").select("task", "of").rows()
        if rows.is_empty() or len(names) != 2:
            continue
        means = rows.group_by(*KEYS, maintain_order=True).agg(cosine=weighted_mean())
        (_, first), (_, second) = names
        parts.append(
            means.with_columns(first=pl.lit(first), second=pl.lit(second), seed=pl.lit(of_run["seed"][0]))
        )
    return pl.concat(parts) if parts else None


def pair_table(read: RunsRead) -> tuple[pl.DataFrame | None, list[str]]:
    """Pair runs without masks (`PAIRS`), with notes on claims of runs that were trained otherwise."""
    runs = RunSet(read.runs)
    table = pairs_of(runs)
    note_claims_unlike_pairs(runs, read.gates, table)
    return table, runs.notes


def cosines(read: RunsRead) -> tuple[pl.DataFrame | None, tuple[str, ...]]:
    """The cosines of gradients that pairs recorded (`cosines_of`)."""
    return cosines_of(read.runs, read.tables["pairs"]) if "pairs" in read.tables else None, ()


def contest_of_study(data: ReportData, claiming: ClaimingSetup | None) -> dict[str, list[Path]]:
    """The contest and all its estimates, if there are claims, pairs and the worth of their heads."""
    runs = _of_contest(data, claiming)
    return dict.fromkeys(("contest", "forest"), runs) if runs else {}


def conflict_of_study(data: ReportData, claiming: ClaimingSetup | None) -> dict[str, list[Path]]:
    """The cosines of gradients, if there are such and the contest can be drawn."""
    runs = _of_contest(data, claiming)
    return {"conflict": runs} if runs and "cosines" in data.evidence else {}


def draw_contest(request: FigureRequest) -> FigureWithTables:
    """A panel per task: its claimed heads beside partners that do not claim them, and partners that do."""
    read = _read(request)
    claims = claims_table(next(iter(read.claims.values())))
    worth = worth_table(read.values, read.pairs, IMPORTANCE)
    cells, notes = contest_cells(worth, claims, request.tasks)
    heads, means = head_lines(cells), task_means(cells)
    sides = side_means(worth, heads)
    tables = {"-heads": heads, "-tasks": means, "-sides": sides}
    units = {f"-{name}": of_table for name, of_table in LINE_UNITS.items()}
    notes = (*_forced(next(iter(read.claims.values()))), *notes)
    if len(cells.seeds) < FEWEST_SEEDS:
        notes = (
            *notes,
            f"{len(cells.seeds)} of {FEWEST_SEEDS} seeds that an answer on the contest needs",
        )
    return FigureWithTables(contest_figure(heads, means, sides), (*read.notes, *notes), tables, units=units)


def all_estimates(request: FigureRequest) -> FigureWithTables:
    """All estimates of the contest; the claims of the first setup give the primary one."""
    read = _read(request)
    (_, masks), *others = read.claims.items()
    claims = {name: claims_table(of) for name, of in others}
    found = estimates(read.values, read.pairs, claims_table(masks), claims, learned=learned_claims(masks))
    if math.isnan(found.primary.beta):
        raise InputError(f"no estimate of the contest: {found.primary.reason}")
    reason = f"{masks.forced_in_words()}{found.primary.reason}{found.beside_learned}"
    word = f"the contest by importance: {found.primary.word}, {reason}"
    return FigureWithTables(
        forest(found.table), (*read.notes, *found.notes, word), {"": found.table}, units={"": COLUMNS}
    )


def draw_conflict(request: FigureRequest) -> FigureWithTables:
    """Cosines of two tasks' gradients by which tasks claim the head, as recorded when pairs were trained."""
    runs, pairs, claims = _claims_and_pairs(request)
    cosines = cosines_of(runs, pairs)
    if cosines is None:
        raise InputError(
            "no pair here has recorded gradients: train them with --gradient_conflict_every=10 for instance"
        )
    pair, twins = of_pairs(cosines), of_twins(cosines)
    masks = next(iter(claims.values()))
    result = conflict_by_claims(pair, claims_table(masks))
    notes = (*runs.notes, *_forced(masks))
    return FigureWithTables(
        conflict_figure(result, twins), notes, {"": result.heads}, units={"": CONFLICT_UNITS}
    )


def _learned(name: str, kind: type[Task]) -> str:
    """What a task learns: `control`, or the name of the task; of a half, that of the whole or its layer."""
    if kind.drawn:
        return CONTROL
    if kind.half is None:
        return name
    layer = kind.layers[0]
    same = (task for task, of in TASKS.items() if of.kind == kind.kind and layer in of.layers)
    return next(same, layer)


def _of_contest(data: ReportData, claiming: ClaimingSetup | None) -> list[Path]:
    """The runs of the contest's figures: masked runs of single tasks (those of the claims first), then pairs.

    Empty if claims, pairs or the worth of the pairs' heads are missing.
    """
    pairs = data.evidence.get("pairs")
    if data.gates is None or pairs is None or data.worth is None:
        return []
    if data.worth.filter(pl.col("run").is_in(set(pairs["run"]))).is_empty():
        return []
    alone = [setup.name for setup in data.setups if setup.single]
    masked = (
        data.gates.filter(pl.col("setup").is_in(alone)).select("run", "setup").unique(maintain_order=True)
    )
    first = masked["setup"] == (claiming.setup if claiming is not None else "")
    folders = [*masked.filter(first)["run"], *masked.filter(~first)["run"]]
    return [Path(run) for run in [*folders, *pairs["run"].unique(maintain_order=True)] if folders]


@dataclass(frozen=True)
class _Contest:
    """The data of the contest's figures."""

    values: pl.DataFrame
    """The measures of worth on the heads of pair runs."""
    pairs: pl.DataFrame
    claims: dict[str, Masks]
    """By setup of masked single-task runs."""
    notes: tuple[str, ...]


def _forced(masks: Masks) -> list[str]:
    """A note with the numbers of claims and of learned claims, if a target forced some."""
    return [masks.forced_in_words().removesuffix("; ")] if masks.forced().any() else []


def _claims_and_pairs(request: FigureRequest) -> tuple[RunSet, pl.DataFrame, dict[str, Masks]]:
    """The runs, their pairs, and claims by setup; raises `InputError` for what is missing."""
    runs = RunSet.open(request.paths)
    runs.check_encoders()
    pairs = pairs_of(runs)
    gates = masks_of(_like_pairs(runs, pairs))
    if gates is None:
        raise InputError("no single-task run with masks among these: use those whose masks are the claims")
    if pairs is None:
        raise InputError("no run of two tasks without masks among these: add the pairs")
    claims = {}
    for (setup,), of_setup in gates.group_by("setup", maintain_order=True):
        masks, left_out = final_masks(of_setup)
        claims[str(setup)] = masks
        runs.notes += left_out
    return runs, pairs, claims


def _like_pairs(runs: RunSet, pairs: pl.DataFrame | None) -> RunSet:
    """The single-task runs with masks that differ from the pairs in their masks only."""
    masked = runs.where(lambda run: run.setup.single and run.setup.pruning != "none")
    if pairs is None or not masked:
        return masked
    chosen = set(pairs["run"])
    both, start = runs.where(lambda run: run.name in chosen or run in masked), len(runs.notes)
    alike = both.like_most(MASKS, like=chosen, about="claims: ").where(masked.__contains__)
    if not alike:
        left_out = runs.notes[start].removeprefix("claims: ")
        raise InputError(f"no claims of runs that were trained like the pairs: {left_out}")
    return alike


def _read(request: FigureRequest) -> _Contest:
    """Claims, pairs and worth in the given runs; raises `InputError` for what is missing."""
    runs, pairs, claims = _claims_and_pairs(request)
    names = set(pairs["run"])
    chosen = runs.where(lambda run: run.name in names)
    otherwise = measured_otherwise(chosen)
    parts = []
    for run in chosen:
        if not run.has("heads.parquet"):
            runs.notes.append(f"{run.name} has no heads.parquet: left out; 'mtl importance' makes it")
            continue
        parts.append(worth_of_run(run, run.config["tasks"], otherwise.get(run.name, ())))
    values = pl.concat(parts) if parts else None
    if values is None or values.filter(pl.col("measure") == IMPORTANCE).is_empty():
        raise InputError("no importance of heads in these pairs: 'mtl importance RUN' measures it")
    return _Contest(values, pairs, claims, tuple(dict.fromkeys(runs.notes)))
