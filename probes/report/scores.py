"""Scores per setup: mean and spread over seeds, and the difference from training alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from mtl.probes.report.data import ReportData, Setup
from mtl.probes.report.number_format import signed
from mtl.probes.task_order import tasks_in


@dataclass(frozen=True)
class Cell:
    """The scores of a task in a setup, in per cent."""

    values: tuple[tuple[int, float], ...]
    """Seed and score; if there are several draws of random labels, their mean."""
    mean: float
    spread: float | None
    """Standard deviation over seeds (n - 1); `None` for a single seed."""
    difference: float | None
    """Mean less the baseline's mean, over seeds that both have; `None` if there are none."""


@dataclass(frozen=True)
class Row:
    """A setup and its cells in the order of tasks."""

    setup: Setup
    cells: tuple[Cell | None, ...]
    mean: float | None
    """The mean over all tasks but those that others are only compared with; `None` if one is missing."""


def score_rows(evidence: ReportData) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """The tasks, and a row for every setup that has a score."""
    tasks = tuple(tasks_in(evidence.scores))
    by_seed: dict[tuple[str, str], dict[int, float]] = {}
    cell = evidence.scores.group_by("setup", "task", "seed", maintain_order=True).agg(pl.col("score").mean())
    for setup, task, seed, score in cell.iter_rows():
        by_seed.setdefault((setup, task), {})[seed] = score
    rows = []
    for setup in evidence.setups:
        cells = tuple(
            _cell(by_seed[setup.name, task], by_seed.get((setup.baseline or "", task), {}))
            if (setup.name, task) in by_seed
            else None
            for task in tasks
        )
        if any(cell is not None for cell in cells):
            averaged = zip(tasks, cells, strict=True)
            means = [
                None if cell is None else cell.mean
                for task, cell in averaged
                if task not in evidence.only_compared
            ]
            rows.append(Row(setup, cells, _mean(means)))
    return tasks, tuple(rows)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


@dataclass(frozen=True)
class Cost:
    """What joint training costs a task."""

    task: str
    alone: float
    joint: float
    difference: float
    """Jointly less alone, over common seeds; negative: worse jointly."""
    seeds: int


def joint_costs(tasks: Sequence[str], rows: Sequence[Row]) -> tuple[str, list[Cost]]:
    """The joint setup of most tasks without masks, and what it costs each of them; empty without one.

    A setup that was trained otherwise than its single tasks does not count.
    """
    of_setup = {row.setup.name: row for row in rows}
    joint = [
        row
        for row in rows
        if not row.setup.single and row.setup.pruning == "none" and row.setup.baseline in of_setup
        if not row.setup.unlike
    ]
    if not joint:
        return "", []
    row = max(joint, key=lambda row: row.setup.tasks)
    costs = []
    for task, cell, alone in zip(tasks, row.cells, of_setup[row.setup.baseline or ""].cells, strict=True):
        if cell is None or alone is None or cell.difference is None:
            continue
        common = dict(cell.values).keys() & dict(alone.values).keys()
        costs.append(
            Cost(
                task,
                float(np.mean([value for seed, value in alone.values if seed in common])),
                float(np.mean([value for seed, value in cell.values if seed in common])),
                cell.difference,
                len(common),
            )
        )
    return row.setup.name, costs


def _cell(scores: dict[int, float], baseline: dict[int, float]) -> Cell:
    values = list(scores.values())
    common = sorted(set(scores) & set(baseline))
    return Cell(
        tuple(sorted(scores.items())),
        float(np.mean(values)),
        float(np.std(values, ddof=1)) if len(values) > 1 else None,
        float(np.mean([scores[seed] - baseline[seed] for seed in common])) if common else None,
    )


def score_table(tasks: Sequence[str], rows: Sequence[Row]) -> pl.DataFrame:
    """A row per setup as papers print it: `94.37 ± 0.37` per task (`94.37` for one seed), and their mean."""
    table = [
        {
            "setup": row.setup.name,
            **{task: _with_spread(cell) for task, cell in zip(tasks, row.cells, strict=True)},
            "mean": row.mean,
        }
        for row in rows
    ]
    schema = {"setup": pl.String} | dict.fromkeys(tasks, pl.String) | {"mean": pl.Float64}
    return pl.DataFrame(table, schema)


def _with_spread(cell: Cell | None) -> str | None:
    if cell is None:
        return None
    return f"{cell.mean:.2f}" + ("" if cell.spread is None else f" ± {cell.spread:.2f}")


def printed_scores(tasks: Sequence[str], rows: Sequence[Row]) -> pl.DataFrame:
    """`score_table` for papers, with differences from the baseline, and the best of each column in `**`.

    Scores that are equal in two decimals are equally good. A single setup is not the best. A setup that was
    trained otherwise than its baseline (`Setup.unlike`) has no differences, since a paper would not say so.
    """
    columns: dict[str, list[tuple[float | None, str | None]]] = {
        task: [
            (None if cell is None else cell.mean, _in_print(cell, row.setup))
            for row in rows
            for cell in [row.cells[place]]
        ]
        for place, task in enumerate(tasks)
    }
    columns["mean"] = [(row.mean, None if row.mean is None else f"{row.mean:.2f}") for row in rows]
    marked = {name: _best_in_bold(values) for name, values in columns.items()}
    schema = dict.fromkeys(("setup", *columns), pl.String)
    return pl.DataFrame({"setup": [row.setup.name for row in rows], **marked}, schema)


def _in_print(cell: Cell | None, setup: Setup) -> str | None:
    if cell is None or cell.difference is None or setup.unlike:
        return _with_spread(cell)
    return f"{_with_spread(cell)} ({signed(cell.difference, 2)})"


def _best_in_bold(values: Sequence[tuple[float | None, str | None]]) -> list[str | None]:
    known = [round(value, 2) for value, _ in values if value is not None]
    best = max(known) if len(known) > 1 else None
    return [
        f"**{text}**" if value is not None and round(value, 2) == best else text for value, text in values
    ]
