"""The record of how gates move."""

from __future__ import annotations

import math

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from mtl.errors import InputError
from mtl.heads.gate_file import CLOSING_POINT, LEARNED, add_gates, last_log_alphas, read_gates
from mtl.heads.gate_table import gate_rows, gate_summary, gate_table
from mtl.heads.gates import HeadGates
from mtl.models.apply_masks import gates_from_file
from mtl.probes.sites import Site

SITES = (Site("self", 0), Site("self", 1))


def test_the_record_has_a_row_per_task_and_head():
    gates = HeadGates(2, 3, init_mean=0.0, init_std=3.0)
    table = gate_table(gate_rows(gates, ("pos", "dep"), 7, SITES))
    assert table.columns == [
        "task", "step", "attention", "layer", "head", "log_alpha", "gate", "open", "log_alpha_at_choice",
        "unit",
    ]  # fmt: skip
    assert set(table["attention"]) == {"self"}
    assert table["log_alpha_at_choice"].is_null().all()
    assert len(table) == 2 * 2 * 3
    row = table.row(
        by_predicate=(pl.col("task") == "dep") & (pl.col("layer") == 1) & (pl.col("head") == 2), named=True
    )
    assert row["gate"] == pytest.approx(gates.gate()[0, 1, 2].item())
    assert row["open"] == gates.open()[0, 1, 2].item()
    assert gate_summary(gates)["shared"]["open"] == gates.open().sum().item()


def test_rows_name_the_kind_of_attention_and_its_own_layers():
    gates = HeadGates(3, 2, init_std=1.0)
    sites = (Site("self", 0), Site("self", 1), Site("cross", 0))
    at_choice = torch.arange(6.0).reshape(1, 3, 2)
    table = gate_table(gate_rows(gates, ("pos",), 7, sites, at_choice))
    cross = table.filter(attention="cross")
    assert cross["layer"].to_list() == [0, 0]
    assert cross["log_alpha_at_choice"].to_list() == [4.0, 5.0]
    assert cross["gate"].to_list() == gates.gate()[0, 2].tolist()


def test_a_file_from_before_the_columns_is_read_as_self_attention(tmp_path):
    gates = HeadGates(2, 3)
    table = gate_table(gate_rows(gates, ("pos",), 7, SITES))
    table.drop("attention", "log_alpha_at_choice").write_parquet(tmp_path / "gates.parquet")
    read = read_gates(tmp_path / "gates.parquet")
    assert_frame_equal(read, table, check_column_order=False)
    torch.testing.assert_close(
        gates_from_file(tmp_path / "gates.parquet", "pos", (2, 3)), gates.gate()[0].detach()
    )


def test_a_mask_file_with_several_kinds_is_laid_out_by_site(tmp_path):
    gates = HeadGates(3, 2, init_std=1.0)
    sites = (Site("self", 0), Site("self", 1), Site("cross", 0))
    gate_table(gate_rows(gates, ("pos",), 7, sites)).write_parquet(tmp_path / "gates.parquet")
    torch.testing.assert_close(
        gates_from_file(tmp_path / "gates.parquet", "pos", (3, 2)), gates.gate()[0].detach()
    )


def test_what_training_had_open_is_known_from_the_choice() -> None:
    """Just above and below the closing point; without a target, the column `open` decides."""
    gates = HeadGates(1, 4)
    assert pytest.approx(gates.closing_point, abs=1e-12) == CLOSING_POINT
    table = pl.DataFrame(
        {
            "log_alpha_at_choice": [gates.closing_point + 1e-4, gates.closing_point - 1e-4, None, None],
            "open": [False, True, True, False],
        }
    )
    assert table.select(learned=LEARNED)["learned"].to_list() == [True, False, True, False]


def test_an_evaluation_made_again_replaces_its_rows_and_later_ones(tmp_path):
    path = tmp_path / "gates.parquet"

    def at(update):
        return gate_table(gate_rows(HeadGates(2, 3, init_std=1.0), ("pos",), update, SITES))

    first, second, again = at(5), at(10), at(10)
    add_gates(path, first, first=True)
    for rows in (second, at(15), again):
        add_gates(path, rows, first=False)
    assert_frame_equal(read_gates(path), pl.concat([first, again]))
    add_gates(path, second, first=True)
    assert_frame_equal(read_gates(path), second)


def test_gates_of_earlier_evaluations_are_not_lost_in_silence(tmp_path):
    rows = gate_table(gate_rows(HeadGates(2, 3), ("pos",), 10, SITES))
    path = tmp_path / "gates.parquet"
    with pytest.raises(InputError, match=r"gates\.parquet is gone"):
        add_gates(path, rows, first=False)
    path.write_text("damaged")
    with pytest.raises(InputError, match="cannot be read"):
        add_gates(path, rows, first=False)


@pytest.mark.parametrize("update", [5, 10])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", ["gate", "log_alpha", "log_alpha_at_choice"])
def test_a_value_that_is_no_number_is_named_at_any_update(tmp_path, column, bad, update):
    table = gate_table(
        [row for at in (5, 10) for row in gate_rows(HeadGates(2, 3, init_std=1.0), ("pos",), at, SITES)]
    )
    here = (pl.col("step") == update) & (pl.col("layer") == 1) & (pl.col("head") == 2)
    broken = table.with_columns(pl.when(here).then(bad).otherwise(column).cast(pl.Float32).alias(column))
    broken.write_parquet(tmp_path / "gates.parquet")
    for read in (read_gates, last_log_alphas):
        with pytest.raises(InputError, match=r"gates\.parquet: cannot be used \(1 gate with a value"):
            read(tmp_path / "gates.parquet")
