"""The tables of pruning curves in a run's folder: scores, orders of heads, times; and which heads survive."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from mtl.probes.sites import KEYS
from mtl.probes.tables import table_files
from mtl.probes.tables.table_files import ColumnUnit
from mtl.tasks.in_words import counted

SCORES = pl.Schema(
    {
        "by": pl.String,
        "draw": pl.Int32,
        "task": pl.String,
        "trained_epochs": pl.Int32,
        "kept": pl.Int32,
        "share": pl.Float64,
        "split": pl.String,
        "figure": pl.String,
        "score": pl.Float64,
        "source": pl.String,
    }
)
"""curve.parquet: a row per point.

`by` is the order in which heads go, and `draw` its number if there are several (random orders, runs with
gates). `trained_epochs` is 0 for masked models; for cut models, it is how long they were trained on. `share`
is `kept` over the heads that were open at the start, `score` is in per cent, and `source` is the run that was
scored.
"""

ORDERS = pl.Schema(
    {
        "by": pl.String,
        "draw": pl.Int32,
        "task": pl.String,
        "attention": pl.String,
        "layer": pl.Int32,
        "head": pl.Int32,
        "rank": pl.Int32,
    }
)
"""curve_heads.parquet: a row per head, with layers and heads from 0.

`rank` is the number of heads that are still kept when the head goes: the mask of k heads has those of a rank
below k. Heads that no point of the curve closes have the rank `NEVER`.
"""
NEVER = -1

TIMES = pl.Schema(
    {
        "by": pl.String,
        "draw": pl.Int32,
        "task": pl.String,
        "kept": pl.Int32,
        "share": pl.Float64,
        "split": pl.String,
        "figure": pl.String,
        "score": pl.Float64,
        "parameters": pl.Int64,
        "device": pl.String,
        "batch": pl.Int32,
        "multiply_adds": pl.Float64,
        "operations_of_whole": pl.Float64,
        "seconds": pl.Float64,
        "seconds_of_whole": pl.Float64,
    }
)
"""curve_time.parquet: a row per point and size of batch, for models whose heads are cut out.

All numbers are of the encoder: its parameters, and its multiply-adds and seconds per sentence.
`operations_of_whole` and `seconds_of_whole` are the ratios of these two to those of the uncut encoder.
"""


UNITS = (
    ColumnUnit.SHARE.of("share", "surviving")
    | ColumnUnit.PERCENT.of("score")
    | ColumnUnit.NUMBER.of("multiply_adds", "operations_of_whole", "seconds_of_whole")
    | ColumnUnit.SECONDS.of("seconds")
)
"""The units of the numbers in these tables, and in those of surviving heads."""
SCHEMAS = {"curve.parquet": SCORES, "curve_heads.parquet": ORDERS, "curve_time.parquet": TIMES}
"""The tables by the names of their files."""


def read_curve_table(path: Path) -> tuple[pl.DataFrame, dict[str, str]]:
    """One of the tables (by its file's name) and its provenance.

    Raises `ValueError` if the file cannot be read, lacks a column, or has a value that is not finite.
    """
    table, made_of = table_files.read_complete(path, SCHEMAS[path.name], "mtl curve")
    columns = [name for name, kind in SCHEMAS[path.name].items() if kind.is_float()]
    broken = table.filter(pl.any_horizontal(pl.lit(False), *(~pl.col(name).is_finite() for name in columns)))
    if broken.height:
        raise ValueError(
            f"{path}: {counted(broken.height, 'value')} not finite; make it again with 'mtl curve'"
        )
    return table, made_of


def mask_of(
    orders: pl.DataFrame, by: str, task: str, kept: int, draw: int = 0
) -> frozenset[tuple[str, int, int]]:
    """The heads (attention, layer, head) that a curve keeps at one of its points."""
    chosen = orders.filter(
        (pl.col("by") == by) & (pl.col("draw") == draw) & (pl.col("task") == task) & (pl.col("rank") < kept)
    )
    return frozenset(chosen.select(KEYS).iter_rows())


def in_method_order(table: pl.DataFrame, methods: Sequence[str] = ()) -> pl.DataFrame:
    """The rows by task, method, draw and heads kept; methods are in the given order, others after them."""
    known = [*methods, *sorted(set(table["by"]) - set(methods))]
    place = pl.col("by").replace_strict(
        {name: number for number, name in enumerate(known)}, return_dtype=pl.Int32
    )
    epochs = [name for name in ("trained_epochs",) if name in table.columns]
    return table.sort("task", place, "draw", *epochs, -pl.col("kept").cast(pl.Int64), maintain_order=True)


def curve_settings(provenance: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """By method and task, how the curves of a table were made, if it is recorded."""
    found = {}
    for name, key in provenance.items():
        if name.startswith("{") and " " in key:
            part = json.loads(name)
            found[part["by"], part["task"]] = key.partition(" ")[2]
    return found


def surviving_roles(orders: pl.DataFrame, points: pl.DataFrame, with_roles: pl.DataFrame) -> pl.DataFrame:
    """Per point of a curve and role, the share of the role's heads that are still kept.

    `orders` and `points` are rows of curve_heads.parquet and curve.parquet. Columns: by, draw, task, role,
    kept, share (of all heads: what a role keeps by chance), with_role (heads of the role at the start),
    surviving (the share of these that is kept).
    """
    of_role = orders.join(with_roles, on=list(KEYS))
    return _surviving(of_role, points, "role").rename({"at_start": "with_role"})


def surviving_kinds(orders: pl.DataFrame, points: pl.DataFrame) -> pl.DataFrame:
    """Per point of a curve and kind of attention, the share of the kind's heads that are still kept.

    `orders` and `points` as in `surviving_roles`. Columns: by, draw, task, attention, kept, share (of all
    heads), at_start (heads of the kind at the start), surviving (the share of these that is kept).
    """
    return _surviving(orders, points, "attention")


def _surviving(heads: pl.DataFrame, points: pl.DataFrame, group: str) -> pl.DataFrame:
    """Per point of a curve, the share of each group's heads that are still kept."""
    part = ["by", "draw", "task"]
    at = points.select(*part, "kept", "share").unique(maintain_order=True)
    return (
        heads.join(at, on=part)
        .group_by(*part, group, "kept", "share", maintain_order=True)
        .agg(at_start=pl.len(), surviving=(pl.col("rank") < pl.col("kept")).mean())
    )
