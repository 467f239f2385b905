"""Tables of gates: a row per step, task, layer and head (`mtl.heads.gate_file.SCHEMA`)."""

from __future__ import annotations

import polars as pl

from mtl.tasks.order import of_draw


def last_gates(gates: pl.DataFrame) -> pl.DataFrame:
    """The rows of the last step of every mask: of each task of each run (column `run`, if there is one)."""
    mask = [name for name in ("run", "task") if name in gates.columns]
    return gates.filter(pl.col("step") == pl.col("step").max().over(mask))


def name_draws(gates: pl.DataFrame) -> pl.DataFrame:
    """The table in which each draw of random labels has a task of its own, if there are several draws.

    The column `draw` is the draw of a mask's random labels, null for the masks of other tasks.
    """
    if gates["draw"].drop_nulls().n_unique() < 2:
        return gates
    drawn = gates.select("task", "draw").drop_nulls("draw").unique()
    names = {(task, draw): of_draw(task, draw) for task, draw in drawn.iter_rows()}
    renamed = pl.DataFrame(
        [(*key, name) for key, name in names.items()],
        {"task": pl.String, "draw": gates.schema["draw"], "named": pl.String},
        orient="row",
    )
    joined = gates.join(renamed, on=["task", "draw"], how="left", maintain_order="left")
    return joined.with_columns(task=pl.coalesce("named", "task")).drop("named")
