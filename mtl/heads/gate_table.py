"""The record of gates during training: all gates as rows of a table, and a few numbers per mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from mtl.heads.gate_file import SCHEMA
from mtl.heads.gates import Gates, HeadGates
from mtl.probes.sites import Site


def gate_rows(
    gates: Gates,
    tasks: Sequence[str],
    update: int,
    sites: Sequence[Site],
    at_choice: Float[Tensor, "mask site head"] | None = None,
) -> list[dict[str, Any]]:
    """All gates as rows of `gate_table`; a mask that tasks share is repeated for each of them.

    `log_alpha` is null for gates that are not learned and for heads without a gate. `log_alpha_at_choice` is
    null where `at_choice` is NaN (a head without a target), and without `at_choice`.
    """
    with torch.no_grad():
        gate, opened = gates.gate().tolist(), gates.open().tolist()
        before = torch.full_like(gates.gate(), torch.nan) if at_choice is None else at_choice
        log_alpha = gates.log_alpha.float().tolist() if isinstance(gates, HeadGates) else None
        ungated = gates.ungated if isinstance(gates, HeadGates) else ()
    unit = "group" if isinstance(gates, HeadGates) and gates.group > 1 else "head"
    chosen_by = before.tolist()
    return [
        {
            "task": task, "step": update, "attention": site.attention, "layer": site.layer, "head": head,
            "log_alpha": None if log_alpha is None or row in ungated else log_alpha[mask][row][head],
            "gate": value, "open": opened[mask][row][head],
            "log_alpha_at_choice": None if row in ungated or isnan(chosen := chosen_by[mask][row][head])
            else chosen,
            "unit": unit,
        }
        for task in tasks
        for mask in [gates.masks.index(task) if task in gates.masks else 0]
        for row, site in enumerate(sites)
        for head, value in enumerate(gate[mask][row])
    ]  # fmt: skip


def gate_table(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Rows of `gate_rows` as a table."""
    return pl.DataFrame(rows, schema=SCHEMA)


def gate_summary(gates: Gates) -> dict[str, dict[str, float]]:
    """Per mask, the number of open heads and, for learned gates, the expected L0 and the unweighted penalty.

    With learned gates, heads without a gate are not counted as open.
    """
    with torch.no_grad():
        numbers = {"open": gates.open().sum((1, 2))}
        if isinstance(gates, HeadGates):
            numbers = {"open": gates.open_learned().sum((1, 2))}
            numbers |= {"expected_l0": gates.expected_l0(), "penalty": gates.penalty()}
        return {
            mask: {name: float(values[index]) for name, values in numbers.items()}
            for index, mask in enumerate(gates.masks)
        }


def open_heads(gates: Mapping[str, Mapping[str, float]]) -> str:
    """The open heads per mask and, in brackets, the number expected under sampling, as a part of a line.

    Empty for gates that are not learned.
    """
    if not all("expected_l0" in numbers for numbers in gates.values()) or not gates:
        return ""
    counts = (
        f"{mask} {numbers['open']:.0f} ({numbers['expected_l0']:.1f})" for mask, numbers in gates.items()
    )
    return "  open (expected) " + ", ".join(counts)
