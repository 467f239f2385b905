"""Values that several parts of a report compute from one table."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import polars as pl

T = TypeVar("T")


def made_once(make: Callable[[pl.DataFrame], T]) -> Callable[[pl.DataFrame], T]:
    """The function of a table, with its value computed once and kept as long as the table exists.

    Tables are known by identity: two equal tables have values of their own.
    """
    values: dict[int, T] = {}

    @wraps(make)
    def of_table(table: pl.DataFrame) -> T:
        if id(table) not in values:
            values[id(table)] = make(table)
            weakref.finalize(table, values.pop, id(table))
        return values[id(table)]

    return of_table
