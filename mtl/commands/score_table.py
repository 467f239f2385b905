"""Scores as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table


def print_scores(
    metrics: Mapping[str, Mapping[str, Mapping[str, float]]], title: str, console: Console | None = None
) -> None:
    """Print scores per task (rows) and split (columns), in per cent; per-type scores are left to files."""
    table = Table(title=title)
    table.add_column("task")
    table.add_column("score")
    for split in metrics:
        table.add_column(split, justify="right")
    tasks = dict.fromkeys(task for scores in metrics.values() for task in scores)
    for task in tasks:
        names = dict.fromkeys(
            name for scores in metrics.values() for name in scores.get(task, {}) if "/" not in name
        )
        for name in names:
            cells = [scores.get(task, {}).get(name) for scores in metrics.values()]
            table.add_row(task, name, *("" if cell is None else f"{cell:.2f}" for cell in cells))
        table.add_section()
    (console or Console(markup=False, emoji=False)).print(table)
