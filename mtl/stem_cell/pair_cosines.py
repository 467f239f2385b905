"""Cosines of two tasks' gradients per head, as pair runs recorded them in training."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from mtl.errors import as_input_error
from mtl.probes.sites import KEYS
from mtl.probes.tables import heads_table
from mtl.probes.tables.label_scores import weighted_mean


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
            heads, _ = heads_table.read(file)
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
