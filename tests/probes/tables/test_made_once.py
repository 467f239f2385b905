"""Values that are made once for a table."""

from __future__ import annotations

import gc

import polars as pl

from mtl.probes.tables.made_once import made_once


def test_a_value_is_made_once_for_each_table_and_goes_with_it() -> None:
    asked: list[int] = []

    @made_once
    def total(table: pl.DataFrame) -> int:
        asked.append(table.height)
        return int(table["a"].sum())

    first, equal = (pl.DataFrame({"a": [1, 2]}) for _ in range(2))
    assert [total(first), total(first), total(equal)] == [3, 3, 3]
    assert asked == [2, 2]
    place = id(first)
    del first
    gc.collect()
    others = [pl.DataFrame({"a": [each]}) for each in range(50)]
    assert [total(other) for other in others] == list(range(50))
    assert place  # a table at the place of one that is gone has a value of its own
