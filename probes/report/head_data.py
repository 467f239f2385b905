"""The page's data on every head, small enough to be part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from mtl.probes.head_names import cell_names
from mtl.probes.report.head_measures import head_measures, skill_titles
from mtl.probes.sites import Site, grid, numbered
from mtl.probes.statistics.masks import Masks
from mtl.probes.statistics.skill import REGIMES

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_PER_CENT = (*(_DIGITS[number // 36] + _DIGITS[number % 36] for number in range(101)), "--")


def packed(values: Float[np.ndarray, "*many"]) -> str:
    """Values from 0 to 1 as per cent, two digits of base 36 each; `--` for NaN."""
    numbers = np.nan_to_num(100 * np.clip(values, 0, 1), nan=101).round().astype(int)
    return "".join([_PER_CENT[number] for number in numbers.ravel().tolist()])


def heads_data(
    sites: Sequence[Site],
    heads: int,
    by_setup: Mapping[str, Masks],
    claimed: Masks | None,
    skills: pl.DataFrame | None,
    mean_skills: pl.DataFrame | None,
    measured: pl.DataFrame | None,
) -> dict[str, Any]:
    """Masks, claims, every measure, and heads' values and skills per label, in lists over sites and heads.

    `measured` has the rows of heads.parquet of all runs, with `regime`, `run` and `seed`.
    """
    return {
        "sites": [list(site) for site in sites],
        "heads": heads,
        "names": cell_names(sites, heads),
        "masks": [
            {
                "setup": setup,
                "task": task,
                "seeds": list(masks.seeds),
                "gates": [packed(gate) for gate in masks.gate[place]],
                "open": packed(masks.opened[place].mean(0)),
                "forced": [
                    "".join("x" if head else "." for head in forced.ravel().tolist())
                    for forced in masks.forced()[place]
                ],
            }
            for setup, masks in by_setup.items()
            for place, task in enumerate(masks.tasks)
        ],
        "claims": {}
        if claimed is None
        else {
            task: packed(claims.astype(float))
            for task, claims in zip(claimed.tasks, claimed.claimed(), strict=True)
        },
        "means": _means(mean_skills, sites, heads),
        "measures": [] if measured is None else head_measures(measured, sites, heads),
        "skills": [] if measured is None else skill_titles(measured),
        **_labels(skills, sites, heads),
    }


def _means(table: pl.DataFrame | None, sites: Sequence[Site], heads: int) -> dict[str, list[float | None]]:
    if table is None:
        return {}
    names = [name for name in ("static", "stl", "joint", "loss") if table[name].null_count() == 0]
    return {name: grid(table, name, sites, heads).round(4).ravel().tolist() for name in names}


def _labels(skills: pl.DataFrame | None, sites: Sequence[Site], heads: int) -> dict[str, Any]:
    """Value and skill of every head per regime and label."""
    if skills is None:
        return {"labels": [], "value": {}, "skill": {}}
    counts = skills.group_by("task", "label").agg(pl.col("count", "counted").max())
    labels = counts.sort("task", "count", "label", descending=[False, True, False])
    known: dict[str, dict[str, list[str | None]]] = {"value": {}, "skill": {}}
    cells = numbered(skills, sites).join(labels.with_row_index("number"), on=["task", "label"])
    present = set(skills["regime"].unique())
    for regime in [name for name in REGIMES if name in present]:
        rows = cells.filter(pl.col("regime") == regime)
        number, *place = (rows[name].to_numpy() for name in ("number", "site", "head"))
        there = set(number.tolist())
        for column, by_regime in known.items():
            values = np.full((labels.height, len(sites), heads), np.nan)
            values[number, *place] = rows[column].to_numpy()
            by_regime[regime] = [packed(each) if n in there else None for n, each in enumerate(values)]
    return {"labels": [list(row) for row in labels.iter_rows()], **known}
