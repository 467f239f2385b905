"""The record of how gates move: all of them as rows of a table, and a few figures per mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import torch

from mtl.heads.gates import HeadGates


def gate_rows(gates: HeadGates, tasks: Sequence[str], update: int) -> list[dict[str, Any]]:
    """All gates as rows of `gate_table`, layers and heads from 0; a shared mask once for each task."""
    with torch.no_grad():
        log_alpha = gates.log_alpha.float().tolist()
        gate, opened = gates.gate().tolist(), gates.open().tolist()
    rows = []
    for task in tasks:
        mask = gates.masks.index(task) if task in gates.masks else 0
        for layer, heads in enumerate(log_alpha[mask]):
            rows += [
                {
                    "task": task, "step": update, "layer": layer, "head": head, "log_alpha": value,
                    "gate": gate[mask][layer][head], "open": opened[mask][layer][head],
                }
                for head, value in enumerate(heads)
            ]  # fmt: skip
    return rows


def gate_table(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Rows of `gate_rows` as a table."""
    schema = {
        "task": pl.String, "step": pl.Int32, "layer": pl.Int16, "head": pl.Int16, "log_alpha": pl.Float32,
        "gate": pl.Float32, "open": pl.Boolean,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema)


def gate_summary(gates: HeadGates) -> dict[str, dict[str, float]]:
    """Per mask: open heads, expected L0 and the penalty before its weight."""
    with torch.no_grad():
        figures = {
            "open": gates.open().sum((1, 2)),
            "expected_l0": gates.expected_l0(),
            "penalty": gates.penalty(),
        }
        return {
            mask: {name: float(values[index]) for name, values in figures.items()}
            for index, mask in enumerate(gates.masks)
        }


def open_heads(gates: Mapping[str, Mapping[str, float]]) -> str:
    """The numbers of open heads per mask, and of those expected open under sampling, for a line."""
    if not gates:
        return ""
    counts = (
        f"{mask} {figures['open']:.0f} ({figures['expected_l0']:.1f})" for mask, figures in gates.items()
    )
    return "  open (expected) " + ", ".join(counts)
