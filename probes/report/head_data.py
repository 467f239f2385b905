"""What the page knows of every head, small enough to be carried in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from probes.statistics.masks import Masks
from probes.statistics.skill import REGIMES

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def packed(values: Float[np.ndarray, "*many"]) -> str:
    """Values from 0 to 1 as per cent, two digits of base 36 each; `--` for NaN."""
    return "".join(
        "--" if np.isnan(value) else _DIGITS[round(100 * value) // 36] + _DIGITS[round(100 * value) % 36]
        for value in np.clip(values, 0, 1).ravel().tolist()
    )


def heads_data(
    shape: tuple[int, int],
    by_setup: Mapping[str, Masks],
    claimed: Masks | None,
    skills: pl.DataFrame | None,
    mean_skills: pl.DataFrame | None,
) -> dict[str, Any]:
    """Masks, claims, and per label what every head can do, in lists over layers and heads."""
    return {
        "layers": shape[0],
        "heads": shape[1],
        "masks": [
            {
                "setup": setup,
                "task": task,
                "seeds": list(masks.seeds),
                "gates": [packed(gate) for gate in masks.gate[place]],
                "open": packed(masks.opened[place].mean(0)),
            }
            for setup, masks in by_setup.items()
            for place, task in enumerate(masks.tasks)
        ],
        "claims": {}
        if claimed is None
        else {
            task: packed(each.astype(float))
            for task, each in zip(claimed.tasks, claimed.claimed(), strict=True)
        },
        "means": _means(mean_skills),
        **_labels(shape, skills),
    }


def _means(table: pl.DataFrame | None) -> dict[str, list[float | None]]:
    if table is None:
        return {}
    names = [name for name in ("static", "stl", "joint", "loss") if table[name].null_count() == 0]
    return {name: [round(value, 4) for value in table[name]] for name in names}


def _labels(shape: tuple[int, int], skills: pl.DataFrame | None) -> dict[str, Any]:
    """Value and skill of every head per regime and label."""
    if skills is None:
        return {"labels": [], "value": {}, "skill": {}}
    counts = skills.group_by("task", "label").agg(pl.col("count").max())
    labels = counts.sort("task", "count", "label", descending=[False, True, False])
    known: dict[str, dict[str, list[str | None]]] = {"value": {}, "skill": {}}
    blocks = dict(skills.group_by("regime", "task", "label"))
    present = set(skills["regime"])
    for regime in REGIMES:
        if regime not in present:
            continue
        for column, of in known.items():
            of[regime] = [
                packed(grid(blocks[regime, task, label], column, shape))
                if (regime, task, label) in blocks
                else None
                for task, label, _ in labels.iter_rows()
            ]
    return {"labels": [list(row) for row in labels.iter_rows()], **known}


def grid(rows: pl.DataFrame, column: str, shape: tuple[int, int]) -> Float[np.ndarray, "layer head"]:
    """A column of a table with layers and heads, laid out; NaN where there is no row."""
    values = np.full(shape, np.nan)
    values[rows["layer"].to_numpy(), rows["head"].to_numpy()] = rows[column].cast(pl.Float64).to_numpy()
    return values
