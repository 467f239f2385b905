"""Tables of gates: a row per step, task, layer and head (`mtl.heads.gate_file.SCHEMA`)."""

from __future__ import annotations

import polars as pl


def last_gates(gates: pl.DataFrame) -> pl.DataFrame:
    """The rows of the last step of every mask: of each task of each run (column `run`, if there is one)."""
    mask = [name for name in ("run", "task") if name in gates.columns]
    return gates.filter(pl.col("step") == pl.col("step").max().over(mask))
