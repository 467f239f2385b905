"""Skill of heads in pair runs, not cut off at its baseline, as a secondary unit of the contest."""

from __future__ import annotations

import polars as pl

from mtl.probes.measures.table import BY_NAME
from mtl.probes.sites import KEYS
from mtl.probes.stem_cell.statistics.worth_units import SKILL_BEYOND_INPUT, SKILL_POINTS, Unit
from mtl.probes.tables.heads_table import in_texts
from mtl.probes.tables.label_scores import label_scores, weighted_mean
from mtl.tasks.in_words import counted

SKILL_UNITS: tuple[tuple[str, str, Unit], ...] = (
    ("skill of attention, uncut", "attention", SKILL_POINTS),
    ("skill of clustering, uncut, beyond the layer's input", "clustering", SKILL_BEYOND_INPUT),
)
"""Name, measure and unit of each secondary estimate by probes."""


def uncut_skill(heads: pl.DataFrame, pairs: pl.DataFrame, measure: str = "attention") -> pl.DataFrame:
    """Per task, partner, seed and head what its probe scores above the baseline, as `contest` takes worth.

    The baseline of attention is the best fixed offset. That of clustering is the score of random projections
    of the layer's input, since most of what clustering finds is there before any head reads it. A projection
    has as many dimensions as a head, so the level of shuffled labels is the same for both and cancels.

    Skill is averaged over labels that count (`label_scores`), weighted by items. For attention, these are the
    labels on which the head is above the offset in single-task runs. So labels are chosen on runs that have
    no part in the estimate, and a fall below the offset counts; a head without such a label has 0 beside
    every partner. For clustering, all labels are taken, since nearly all heads are below the projections
    (heads mix the words that they attend to), and a choice would leave rare labels that are above by chance.

    `heads` is as `skills` takes it, `pairs` has run, task, of, partner. The table is empty without probes of
    single tasks and of pairs. Raises `ValueError` if one of their runs has no baseline.
    """
    by = ["task", "label", *KEYS]
    baseline = BY_NAME[measure].projection or BY_NAME[measure].chance
    above = in_texts(label_scores(heads, {measure: baseline or ""}).filter("counted"))
    alone = above.filter(pl.col("regime") == "stl")
    measured = above.join(pairs.select("run", "task", "of", "partner"), on=["run", "task"])
    measured = measured.filter(pl.col("of").is_in(set(alone["task"])))
    if measured.is_empty():
        alone = alone.clear()
    lacking = pl.concat([table.filter(pl.col("above").is_null())["run"] for table in (alone, measured)])
    if len(lacking):
        raise ValueError(
            f"{counted(lacking.n_unique(), 'run')}, such as {lacking[0]}, probed without {baseline}: "
            "'mtl probe RUN' measures it"
        )
    means = alone.group_by(by).agg(pl.col("above").mean())
    beyond = pl.lit(BY_NAME[measure].projection is not None) | (pl.col("above") > 0)
    chosen = means.filter(beyond).select(by)
    all_cells = measured.select("of", "partner", "seed", *KEYS).unique(maintain_order=True)
    skill = (
        measured.with_columns(task=pl.col("of"))
        .join(chosen, on=by, how="semi")
        .group_by("of", "partner", "seed", *KEYS)
        .agg(worth=weighted_mean("above"))
    )
    joined = all_cells.join(skill, on=["of", "partner", "seed", *KEYS], how="left", maintain_order="left")
    return joined.with_columns(pl.col("worth").fill_null(0.0)).rename({"of": "task"})
