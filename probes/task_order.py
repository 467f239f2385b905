"""Tasks in one order in every table and figure: that of the catalogue."""

from __future__ import annotations

import polars as pl

from mtl.tasks.order import in_order_of_catalogue


def tasks_in(table: pl.DataFrame, column: str = "task") -> list[str]:
    """The tasks that a column names, in the catalogue's order."""
    return list(in_order_of_catalogue(table[column].unique()))


def by_catalogue(table: pl.DataFrame, column: str = "task") -> pl.DataFrame:
    """The rows by the task that a column names, in the catalogue's order, else as they are."""
    place = {name: number for number, name in enumerate(tasks_in(table, column))}
    return table.sort(pl.col(column).replace_strict(place, return_dtype=pl.Int64), maintain_order=True)
