"""importance.parquet: the importance of heads at each evaluation of a run."""

from __future__ import annotations

import polars as pl

from mtl.errors import InputError
from mtl.files import whole_file
from mtl.probes.tables.table_files import read_parquet, write_parquet
from mtl.runs.folder.run import Run

FILE = "importance.parquet"
SCHEMA = pl.Schema(
    {
        "step": pl.Int32, "task": pl.String, "attention": pl.String, "layer": pl.Int32, "head": pl.Int32,
        "value": pl.Float64,
    }
)  # fmt: skip
"""A row per evaluation (by its update), task and head; layers and heads from 0; nats per sentence."""


def read_importance(run: Run) -> pl.DataFrame:
    """The table; raises `InputError` if it is missing or damaged."""
    path = run.folder / FILE
    if not path.is_file():
        raise InputError(
            f"{run.folder} has no importance over time: train it with --importance_every=1 (or more)"
        )
    try:
        return read_parquet(path).select(SCHEMA.names()).cast(SCHEMA)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: cannot be read ({error}); train the run again") from error


def add_importance(run: Run, rows: pl.DataFrame) -> None:
    """Add an evaluation's rows; those of this update or later ones are replaced, as when a run is resumed."""
    path = run.folder / FILE
    rows = rows.select(SCHEMA.names()).cast(SCHEMA)
    if path.is_file():
        rows = pl.concat([read_importance(run).filter(pl.col("step") < rows["step"].min()), rows])
    with whole_file(path) as temporary:
        write_parquet(rows, temporary)
