"""The laboratory's tables out of many runs, as `mtl.runs.report.gather` uses them: a table, and notes.

A table is `None` if the runs have nothing for it.
"""

from __future__ import annotations

import polars as pl

from mtl.runs.report.gather import RunsRead
from mtl.stem_cell.overlap_scores import overlap_scores
from mtl.stem_cell.pair_runs import claims_unlike_pairs, cosines_of, pairs_of
from mtl.stem_cell.remedies import has_remedy, remedy_scores


def dose(read: RunsRead) -> tuple[pl.DataFrame | None, tuple[str, ...]]:
    """Scores of pairs under fixed masks, by how many heads the masks have in common (`overlap_scores`)."""
    table, notes = overlap_scores([run.run for run in read.runs], read.split, read.score)
    return None if table.is_empty() else table, notes


def pairs(read: RunsRead) -> tuple[pl.DataFrame | None, list[str]]:
    """Pair runs without masks (`PAIRS`), with notes on claims of runs that were trained otherwise."""
    notes: list[str] = []
    table = pairs_of(read.runs, notes)
    return table, notes + claims_unlike_pairs(read.runs, read.gates, table)


def cosines(read: RunsRead) -> tuple[pl.DataFrame | None, tuple[str, ...]]:
    """The cosines of gradients that pairs recorded (`cosines_of`)."""
    return cosines_of(read.tables["pairs"]) if "pairs" in read.tables else None, ()


def remedies(read: RunsRead) -> tuple[pl.DataFrame | None, tuple[str, ...]]:
    """Scores of runs with a remedy and of those to compare them with (`remedy_scores`)."""
    if not any(has_remedy(run.config) for run in read.runs):
        return None, ()
    return remedy_scores([run.run for run in read.runs], read.split, read.score)
