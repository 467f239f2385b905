"""Pair runs without masks, from which the contest is read, with masked runs of single tasks beside them; the
laboratory's tables and figures of them.

A table is `None` if the runs have nothing for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mtl.config.instances import kinds_in
from mtl.errors import InputError, as_input_error
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
from mtl.runs.compare.comparable import RunWithSetup, masks_of, with_setups
from mtl.runs.compare.heads import comparable, measured_otherwise, measured_run, provenance_of, worth_of_run
from mtl.runs.compare.settings import MASKS, check_encoders, encoder_of, keys_in_words
from mtl.runs.compare.setups import repeats
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


def pairs_of(runs: Sequence[RunWithSetup], notes: list[str]) -> pl.DataFrame | None:
    """A row per pair run and task (`PAIRS`); `None` if there are no pair runs without masks.

    A control task has no row, and neither has a run that repeats another one. If pairs were trained in
    several ways (more updates, other rates), the way with the most pairs of tasks is taken; among equals the
    one with the fewest settings that are not neutral. Notes say which runs are left out, and why.
    """
    plain = [run for run in runs if run.settings.plain and len(run.settings.tasks) == 2]
    repeated, copies = repeats([(run.run.folder, run.setup, run.settings) for run in plain])
    notes += copies
    pairs = {str(run.run.folder): run.settings for run in plain if run.run.folder not in repeated}
    if not pairs:
        return None

    def rank(name: str) -> tuple[int, int, str]:
        alike = {other.tasks for other in pairs.values() if not pairs[name].differing(other)}
        return -len(alike), len(pairs[name].set_keys), pairs[name].identity

    chosen, left_out = comparable(pairs, like=[min(pairs, key=rank)])
    notes += [f"the contest: {note}" for note in left_out]
    rows = []
    for run in runs:
        if str(run.run.folder) not in chosen:
            continue
        tasks = pairs[str(run.run.folder)].tasks
        kinds = kinds_in(run.config)
        if taken := [name for name, kind in kinds.items() if name in (CONTROL, TWIN) and not kind.drawn]:
            notes.append(
                f"the contest: {run.run.folder} has a task named {taken[0]}, a name that stands for a kind "
                "of partner: left out"
            )
            continue
        for task, other in (tasks, reversed(tasks)):
            of, partner = (_learned(name, kinds[name]) for name in (task, other))
            partner = TWIN if partner == of else partner
            if of != CONTROL:
                rows.append((str(run.run.folder), run.setup.name, int(run.config["seed"]), task, of, partner))
    return pl.DataFrame(rows, schema=PAIRS, orient="row") if rows else None


def claims_unlike_pairs(
    runs: Sequence[RunWithSetup], gates: pl.DataFrame | None, pairs: pl.DataFrame | None
) -> list[str]:
    """Notes on setups of claims that differ from the pairs in more than their masks."""
    if gates is None or pairs is None:
        return []
    masked, paired = set(gates["run"]), set(pairs["run"])
    settings = {str(run.run.folder): run.settings for run in runs}
    notes: dict[str, None] = {}
    for run in runs:
        name = str(run.run.folder)
        if run.setup.single and name in masked:
            unlike = {
                key: None
                for pair in sorted(paired)
                for key in settings[name].differing(settings[pair], MASKS)
            }
            if unlike:
                keys = keys_in_words([*unlike])
                name = run.setup.name
                notes[f"the contest: claims of {name} are of runs with another {keys} than the pairs"] = None
    return list(notes)


def cosines_of(pairs: pl.DataFrame) -> pl.DataFrame | None:
    """The mean cosine per head over all recorded updates; `None` if no run has recorded any.

    The columns are attention, layer, head, cosine, first, second (the tasks; equal for twins) and seed.
    `pairs` is a table of `pairs_of`. Raises `InputError` for a file that cannot be read.
    """
    parts = []
    for run, of_run in pairs.group_by("run", maintain_order=True):
        file = Path(str(run[0])) / "heads.parquet"
        if not file.is_file():
            continue
        with as_input_error():
            heads, _ = heads_table.read_heads_table(file)
        rows = heads.filter((pl.col("measure") == "gradient_conflict") & (pl.col("count") > 0))
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
    notes: list[str] = []
    table = pairs_of(read.runs, notes)
    return table, notes + claims_unlike_pairs(read.runs, read.gates, table)


def cosines(read: RunsRead) -> tuple[pl.DataFrame | None, tuple[str, ...]]:
    """The cosines of gradients that pairs recorded (`cosines_of`)."""
    return cosines_of(read.tables["pairs"]) if "pairs" in read.tables else None, ()


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
    _, pairs, claims, notes = _claims_and_pairs(request)
    cosines = cosines_of(pairs)
    if cosines is None:
        raise InputError(
            "no pair here has recorded gradients: train them with --gradient_conflict_every=10 for instance"
        )
    pair, twins = of_pairs(cosines), of_twins(cosines)
    masks = next(iter(claims.values()))
    result = conflict_by_claims(pair, claims_table(masks))
    notes += _forced(masks)
    return FigureWithTables(
        conflict_figure(result, twins), tuple(notes), {"": result.heads}, units={"": CONFLICT_UNITS}
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


def _claims_and_pairs(
    request: FigureRequest,
) -> tuple[list[RunWithSetup], pl.DataFrame, dict[str, Masks], list[str]]:
    """The runs, their pairs, claims by setup, and notes; raises `InputError` for what is missing."""
    runs, left_out = request.runs()
    check_encoders({str(run.folder): encoder_of(run) for run in runs})
    compared = with_setups(runs)
    notes = list(left_out)
    alone = [run for run in compared if run.setup.single]
    pairs = pairs_of(compared, notes)
    alone = _like_pairs(alone, compared, pairs, notes)
    gates = masks_of(alone, notes)
    if gates is None:
        raise InputError("no single-task run with masks among these: use those whose masks are the claims")
    if pairs is None:
        raise InputError("no run of two tasks without masks among these: add the pairs")
    claims = {}
    for (setup,), of_setup in gates.group_by("setup", maintain_order=True):
        masks, left_out = final_masks(of_setup)
        claims[str(setup)] = masks
        notes += left_out
    return compared, pairs, claims, notes


def _like_pairs(
    alone: list[RunWithSetup], runs: list[RunWithSetup], pairs: pl.DataFrame | None, notes: list[str]
) -> list[RunWithSetup]:
    """The single-task runs with masks that differ from the pairs in their masks only."""
    masked = {str(run.folder): run for run in alone if run.setup.pruning != "none"}
    chosen = set() if pairs is None else set(pairs["run"])
    settings = {
        str(run.folder): run.settings
        for run in runs
        if str(run.folder) in chosen or str(run.folder) in masked
    }
    alike, left_out = comparable(settings, MASKS, like=chosen) if chosen else (list(masked), [])
    notes += [f"claims: {note}" for note in left_out]
    kept = [masked[name] for name in alike if name in masked]
    if masked and not kept:
        raise InputError(f"no claims of runs that were trained like the pairs: {left_out[0]}")
    return kept


def _read(request: FigureRequest) -> _Contest:
    """Claims, pairs and worth in the given runs; raises `InputError` for what is missing."""
    compared, pairs, claims, notes = _claims_and_pairs(request)
    chosen = [run for run in compared if str(run.folder) in set(pairs["run"])]
    otherwise, unlike = measured_otherwise(
        {
            str(run.folder): measured_run(run.run, run.setup.name, provenance)
            for run in chosen
            if (provenance := provenance_of(run.folder / "heads.parquet")) is not None
        }
    )
    notes += unlike
    parts = []
    for run in chosen:
        file = run.folder / "heads.parquet"
        if not file.is_file():
            notes.append(f"{run.folder} has no heads.parquet: left out; 'mtl importance' makes it")
            continue
        but = otherwise.get(str(run.folder), ())
        parts.append(worth_of_run(run.run, file, run.config["tasks"], run.setup.name, but))
    values = pl.concat(parts) if parts else None
    if values is None or values.filter(pl.col("measure") == IMPORTANCE).is_empty():
        raise InputError("no importance of heads in these pairs: 'mtl importance RUN' measures it")
    return _Contest(values, pairs, claims, tuple(dict.fromkeys(notes)))
