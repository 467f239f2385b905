"""Figures of the contest for heads, from masked runs of single tasks and runs of pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from mtl.errors import InputError
from mtl.probes.statistics.masks import Masks, final_masks
from mtl.probes.stem_cell.figures import conflict_figure, contest_figure, forest
from mtl.probes.stem_cell.statistics.conflict import CONFLICT_UNITS, conflict_by_claims, of_pairs, of_twins
from mtl.probes.stem_cell.statistics.contest import FEWEST_SEEDS, contest_cells
from mtl.probes.stem_cell.statistics.contest_table import (
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
from mtl.runs.compare.comparable import RunWithSetup, masks_of, with_setups
from mtl.runs.compare.heads import comparable, measured_otherwise, measured_run, provenance_of, worth_of_run
from mtl.runs.compare.settings import MASKS, check_encoders, encoder_of
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables
from mtl.stem_cell.pair_runs import cosines_of, pairs_of


@dataclass(frozen=True)
class _Contest:
    """The data of the contest's figures."""

    values: pl.DataFrame
    """The measures of worth on the heads of pair runs."""
    pairs: pl.DataFrame
    claims: dict[str, Masks]
    """By setup of masked single-task runs."""
    notes: tuple[str, ...]


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
