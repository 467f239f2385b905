"""Values that are made once for a table."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from mtl.probes.tables import heads_table
from mtl.probes.tables import heads_table as table
from mtl.probes.tables.heads_table import computed_once


def example() -> pl.DataFrame:
    value = np.array([[[0.5, 0.75]], [[0.0, 0.0]], [[0.1, 0.2]]])
    count = np.array([40, 120, 0])
    names = ("b", "a", "absent")
    return pl.concat(
        [
            table.rows("attention", "dep", names, value, count, "words"),
            table.rows("attention_offset", "dep", names, np.array([0.5, 0.25, 0]), count, "words"),
            table.rows("attention_length", "dep", names, np.array([2.25, 0, 0]), np.array([40, 0, 0])),
            table.rows("clustering", "pos", names[:1], value[:1], count[:1], "self"),
            table.rows("clustering_shuffled", "pos", names[:1], value[:1] / 5, count[:1], "self"),
            table.rows("clustering_majority", "pos", names[:1], np.ones(1), count[:1], "self"),
        ]
    )


def test_labels_that_are_never_hit_stay_and_those_that_do_not_occur_go() -> None:
    frame = example()
    assert frame.schema == table.SCHEMA
    assert set(frame["label"]) == {"a", "b"}
    assert frame.filter(measure="attention", label="a")["value"].to_list() == [0, 0]
    assert frame.filter(measure="attention_offset")["head"].null_count() == 2


def test_the_best_head_stands_beside_chance() -> None:
    best = heads_table.best_heads(example())
    rows = best.select("task", "label", "count", "value", "layer", "head", "chance", "majority").rows()
    assert rows == [
        ("pos", "b", 40, 0.75, 0, 1, pytest.approx(0.15), 1.0),
        ("dep", "a", 120, 0.0, 0, 0, 0.25, None),  # frequent labels first; the first head on ties
        ("dep", "b", 40, 0.75, 0, 1, 0.5, None),
    ]
    means = (
        heads_table.weighted_means(best)
        .select("task", "labels", "items", "value", "chance", "majority")
        .rows()
    )
    assert means == [
        ("pos", 1, 40, 0.75, pytest.approx(0.15), 1.0),
        ("dep", 2, 160, 0.1875, 0.3125, None),
    ]
    lines = heads_table.markdown_summaries(best, heads_table.weighted_means(best)).splitlines()
    assert "| b | 40 | 75.0 | L0H1 | 50.0 | 2.2 |" in lines
    assert "| a | 120 | 0.0 |  | 25.0 |  |" in lines  # no head hits it, so that none is the best
    assert "| *weighted mean* | 160 | 18.8 | | 31.2 | |" in lines
    assert "1 label; the most frequent label alone: 100.0." in lines


def test_written_and_read_is_the_same(tmp_path: Path) -> None:
    table.write_heads_table(tmp_path / "heads.parquet", example(), {"split": "test"})
    read, provenance = table.read_heads_table(tmp_path / "heads.parquet")
    assert read.equals(example())
    assert provenance == {"split": "test"}


def test_rows_counted_by_site_get_the_kind_and_its_layer() -> None:
    value = np.arange(6.0).reshape(1, 3, 2)
    frame = pl.concat(
        [
            table.rows("attention", "dep", ("a",), value, np.array([4])),
            table.rows("attention_offset", "dep", ("a",), np.array([0.5]), np.array([4])),
        ]
    )
    sites = (table.Site("self", 0), table.Site("cross", 0), table.Site("cross", 1))
    placed = table.at_sites(frame, sites)
    assert placed.schema == table.SCHEMA
    assert placed.select("attention", "layer", "head", "value").rows()[2:6] == [
        ("cross", 0, 0, 2.0), ("cross", 0, 1, 3.0), ("cross", 1, 0, 4.0), ("cross", 1, 1, 5.0)
    ]  # fmt: skip
    assert placed.row(6, named=True)["layer"] is None
    assert table.at_sites(frame, [table.Site("self", layer) for layer in range(3)]).equals(frame)


def test_tables_without_a_column_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "heads.parquet"
    example().drop("head").write_parquet(path)
    with pytest.raises(ValueError, match="no column 'head'"):
        table.read_heads_table(path)
    path.write_text("nothing")
    with pytest.raises(ValueError, match=r"cannot be read .*'mtl probe'"):
        table.read_heads_table(path)


def test_a_value_is_made_once_for_each_table_and_goes_with_it() -> None:
    asked: list[int] = []

    @computed_once
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
