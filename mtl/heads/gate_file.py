"""gates.parquet: its columns, and how it is read (without torch)."""

from __future__ import annotations

from pathlib import Path

import polars as pl

SCHEMA = pl.Schema(
    {
        "task": pl.String,
        "step": pl.Int32,
        "attention": pl.String,
        "layer": pl.Int16,
        "head": pl.Int16,
        "log_alpha": pl.Float32,
        "gate": pl.Float32,
        "open": pl.Boolean,
        "log_alpha_at_choice": pl.Float32,
    }
)
"""A row per task, evaluation and head; layers and heads from 0.

`attention` is the kind of attention (`mtl.heads.families.Stack.kind`). `log_alpha_at_choice` is what the
head had when a target's final choice was made; null before it, and in runs without a target.
"""

_DEFAULTS = {"attention": pl.lit("self"), "log_alpha_at_choice": pl.lit(None, dtype=pl.Float32)}
"""What files from before a column existed have in it."""


def read_gates(path: Path) -> pl.DataFrame:
    """The table in a gates.parquet; raises what polars raises where the file cannot be read."""
    table = pl.read_parquet(path)
    absent = {name: value for name, value in _DEFAULTS.items() if name not in table.columns}
    return table.with_columns(**absent)
