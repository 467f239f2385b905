"""Values of curves are finite, and are those that all summaries have."""

from __future__ import annotations

import polars as pl
import pytest

from mtl.analysis.trained import KeyedTable
from mtl.curves.orders import measured_values
from mtl.errors import InputError
from mtl.probes.curves import curve_table
from mtl.probes.statistics.head_values import head_values
from mtl.probes.tables.heads_table import FEWEST_ITEMS
from tests.mtl.test_not_finite import BAD
from tests.probes.tables.test_label_scores import GOOD, HEADS, SITES, planted

POOLS = {"dep": [(0, head) for head in range(4)]}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_not_finite_is_neither_written_nor_read(bad, tmp_path):
    """Writers refuse such values now; readers would compare, average and draw them."""
    for name, schema in curve_table.SCHEMAS.items():
        values = {key: bad if kind.is_float() else None for key, kind in schema.items()}
        table = pl.DataFrame([values], schema=schema)
        if any(kind.is_float() for kind in schema.values()):
            with pytest.raises(InputError, match="not finite"):
                KeyedTable(tmp_path / name, schema, "mtl curve").put({}, "key", table)
            table.write_parquet(tmp_path / name)
            with pytest.raises(
                ValueError, match=f"{name}: 1 value not finite; make it again with 'mtl curve'"
            ):
                curve_table.read_curve_table(tmp_path / name)
        else:
            table.write_parquet(tmp_path / name)
            assert curve_table.read_curve_table(tmp_path / name)[0].height == 1


@pytest.mark.parametrize("measure", ["syntactic", "attention"])
def test_the_last_head_to_go_is_best_by_a_label_that_counts(measure: str) -> None:
    assert int(measured_values(planted(), measure, POOLS, SITES, 4)["dep"][0].argmax()) == GOOD


def test_an_order_has_the_values_of_all_summaries() -> None:
    values = head_values(HEADS).filter(measure="skill", setup="stl").sort("head")["value"].to_list()
    order = measured_values(planted(), "attention", POOLS, SITES, 4)["dep"][0].tolist()
    assert order == pytest.approx(values)


def test_a_table_without_labels_that_count_gives_no_order() -> None:
    few = planted().with_columns(count=pl.lit(FEWEST_ITEMS - 1, dtype=pl.Int64))
    with pytest.raises(InputError, match=r"no label of dep counts, .*fewer than 30 items"):
        measured_values(few, "syntactic", {"dep": [(0, 0)]}, SITES, 4)
