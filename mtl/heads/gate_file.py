"""gates.parquet: its columns, how it is read, and the masks in it (without torch)."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import polars as pl

from mtl.errors import InputError
from mtl.files import whole_file
from mtl.probes.sites import Site, head_name, sites_of
from mtl.probes.tables import heads_table, table_files
from mtl.probes.tables.heads_table import last_gates
from mtl.tasks.in_words import counted, first_line

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
        "unit": pl.String,
    }
)
"""A row per task, evaluation and head; layers and heads from 0.

`attention` is the kind of attention (`mtl.heads.family_table.Stack.kind`). `step` is the number of updates
done. `log_alpha_at_choice` is the head's log alpha when a target's final choice was made; null before it, and
in runs without a target. `unit` is `group` where all heads that share keys and values have one gate, else
`head`.
"""

CLOSING_POINT = math.log((0.001 + 0.1) / (1.1 - 0.001))
"""The log alpha up to which a head of a run counts as closed (`HeadGates.closing_point`)."""
LEARNED = pl.coalesce(pl.col("log_alpha_at_choice") > CLOSING_POINT, "open")
"""Whether training had a head open: when its target made the final choice, or at the last step without one.

A head whose `open` differs was forced open or closed by the target.
"""
_HEAD = ("attention", "layer", "head")


def read_gates(path: Path) -> pl.DataFrame:
    """The table in a gates.parquet; raises a polars or OS error if it cannot be read or lacks a column.

    Raises `InputError` if a value of any update is not a finite number.
    """
    table = table_files.read_parquet(path).select(SCHEMA.names())
    number = [pl.col(name).is_finite() for name in ("gate", "log_alpha", "log_alpha_at_choice")]
    # Gates that are not learned have no log alpha.
    finite = [number[0].fill_null(False), *(value.fill_null(True) for value in number[1:])]
    if unknown := table.filter(~pl.all_horizontal(finite) | pl.col("open").is_null()).height:
        raise InputError(
            f"{path}: cannot be used ({counted(unknown, 'gate')} with a value that is no number); "
            "train the run again"
        )
    return table


def add_gates(path: Path, rows: pl.DataFrame, *, first: bool) -> None:
    """Add an evaluation's rows to a gates.parquet; the `first` evaluation of a run begins it.

    Rows of this update or later are replaced: a run that resumes makes them again. Raises `InputError` if
    the file of earlier evaluations is gone or damaged.
    """
    if not first:
        fix = "put back an undamaged copy, or train the run again"
        try:
            earlier = read_gates(path).filter(pl.col("step") < rows["step"].min())
        except FileNotFoundError as error:
            raise InputError(f"{path} is gone, which held the gates of earlier evaluations: {fix}") from error
        except (OSError, pl.exceptions.PolarsError) as error:
            reason = first_line(error)
            raise InputError(f"{path}: cannot be read ({reason}): {fix}") from error
        rows = pl.concat([earlier, rows])
    with whole_file(path) as temporary:
        table_files.write_parquet(rows, temporary)


def last_log_alphas(path: Path) -> pl.DataFrame:
    """The last log alphas in a gates.parquet, or those of a target's final choice, as rows of heads.parquet.

    Empty without the file, as in a run without masks. Raises as `read_gates` does.
    """
    if not path.is_file():
        return pl.DataFrame(schema=heads_table.SCHEMA)
    return last_gates(read_gates(path)).select(
        measure=pl.lit("log_alpha"), task="task", label=pl.lit(""), attention="attention", layer="layer",
        head="head", value=pl.coalesce("log_alpha_at_choice", "log_alpha"), count=pl.lit(1),
        choice=pl.lit(""),
    ).cast(heads_table.SCHEMA).drop_nulls("value")  # fmt: skip


def read_masks(path: Path) -> pl.DataFrame:
    """The last gates of a mask file: task, attention, layer, head, gate; one row per task and head.

    A file written by hand needs only task, layer, head and gate; `attention` for models with several kinds
    of attention; and `step` to say which rows of a task are the last. Raises `InputError` for a file that
    does not exist, is no table or lacks columns, for a gate that is not a number from 0 to 1, and for a head
    that a task has twice.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such mask file; use the gates.parquet of a run")
    try:
        table = table_files.read_parquet(path)
        absent = [name for name in ("task", "layer", "head", "gate") if name not in table.columns]
        if absent:
            raise InputError(
                f"{path} lacks the column{'s' * (len(absent) > 1)} {', '.join(absent)}: a mask file has a "
                "row per task and head with task, layer, head and gate"
            )
        # What the file lacks is filled in; its own columns come last.
        filled = {"attention": pl.lit("self"), "step": pl.lit(0)} | {
            name: pl.col(name) for name in table.columns
        }
        types = {name: SCHEMA[name] for name in ("task", "step", *_HEAD, "gate")}
        table = table.select(filled[name].cast(kind).alias(name) for name, kind in types.items())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} is not a gates.parquet: {first_line(error)}") from error
    final = last_gates(table).drop("step")
    if final.is_empty():
        raise InputError(f"{path} has no masks in it: use the gates.parquet of a run")
    outside = final.filter(~pl.col("gate").is_between(0, 1).fill_null(False))
    if outside.height:
        task, attention, layer, head, gate = outside.row(0)
        name = head_name(Site(attention, layer), head, sites_of(final))
        raise InputError(f"{path}: the gate of {task} at {name} is {gate}: use a number from 0 to 1")
    if final.select("task", *_HEAD).is_duplicated().any():
        raise InputError(f"{path} has a gate twice for the same task and head: leave one row")
    return final


def masks_fingerprint(masks: pl.DataFrame) -> str:
    """A sha256 of the gates of `read_masks`, whatever the order of the rows and the layout of the file."""
    rows = masks.select("task", *_HEAD, "gate").sort("task", *_HEAD).rows()
    return hashlib.sha256(repr(rows).encode()).hexdigest()
