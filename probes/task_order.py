"""The order of tasks in every table and figure: the chosen order, else that of the catalogue."""

from __future__ import annotations

import polars as pl

from mtl.probes.appearance import ordered
from mtl.tasks.order import in_order_of_catalogue


def tasks_in(table: pl.DataFrame, column: str = "task") -> list[str]:
    """The tasks in a column, in the chosen order (`mtl.probes.appearance`), else the catalogue's."""
    return ordered(in_order_of_catalogue(table[column].unique()))


def by_catalogue(table: pl.DataFrame, column: str = "task") -> pl.DataFrame:
    """The rows, sorted by the task in a column in the order of `tasks_in`; a task's rows keep their order."""
    place = {name: number for number, name in enumerate(tasks_in(table, column))}
    return table.sort(pl.col(column).replace_strict(place, return_dtype=pl.Int64), maintain_order=True)
