"""Skill of attention heads in pair runs, not cut at chance, as a secondary unit of the contest."""

from __future__ import annotations

import polars as pl

from probes.sites import KEYS
from probes.statistics.skill import with_chance

MEASURE = "attention"
CHANCE = "attention_offset"


def uncut_skill(heads: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Per task, partner, seed and head what the probe scores above its best offset, as `contest` takes worth.

    The mean, weighted by counts, over labels on which the head is above the offset in single-task runs: so
    labels are chosen on runs that have no part in the estimate, and a fall below the offset counts. A head
    without such a label has 0 beside every partner. `heads` as `skills` takes it, `pairs` with run, task,
    of, partner. Empty without probes of single tasks and of pairs.
    """
    by = ["task", "label", *KEYS]
    above = with_chance(
        heads.filter(pl.col("measure") == MEASURE), heads.filter(pl.col("measure") == CHANCE)
    ).with_columns(above=pl.col("value") - pl.col("chance"))
    alone = above.filter(pl.col("regime") == "stl").group_by(by).agg(pl.col("above").mean())
    chosen = alone.filter(pl.col("above") > 0).select(by)
    measured = above.join(pairs.select("run", "task", "of", "partner"), on=["run", "task"])
    measured = measured.filter(pl.col("of").is_in(set(alone["task"])))
    every = measured.select("of", "partner", "seed", *KEYS).unique(maintain_order=True)
    weighted = (pl.col("above") * pl.col("count")).sum() / pl.col("count").sum()
    skill = (
        measured.with_columns(task=pl.col("of"))
        .join(chosen, on=by, how="semi")
        .group_by("of", "partner", "seed", *KEYS)
        .agg(worth=weighted)
    )
    joined = every.join(skill, on=["of", "partner", "seed", *KEYS], how="left", maintain_order="left")
    return joined.with_columns(pl.col("worth").fill_null(0.0)).rename({"of": "task"})
