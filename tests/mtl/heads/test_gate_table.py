"""The record of how gates move."""

from __future__ import annotations

import polars as pl
import pytest

from mtl.heads.gate_table import gate_rows, gate_summary, gate_table
from mtl.heads.gates import HeadGates


def test_the_record_has_a_row_per_task_and_head():
    gates = HeadGates(2, 3, init_mean=0.0, init_std=3.0)
    table = gate_table(gate_rows(gates, ("pos", "dep"), 7))
    assert table.columns == ["task", "step", "layer", "head", "log_alpha", "gate", "open"]
    assert len(table) == 2 * 2 * 3
    row = table.row(
        by_predicate=(pl.col("task") == "dep") & (pl.col("layer") == 1) & (pl.col("head") == 2), named=True
    )
    assert row["gate"] == pytest.approx(gates.gate()[0, 1, 2].item())
    assert row["open"] == gates.open()[0, 1, 2].item()
    assert gate_summary(gates)["shared"]["open"] == gates.open().sum().item()
