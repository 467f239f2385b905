"""The masks of several runs in one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from mtl.errors import InputError
from mtl.heads.gate_file import LEARNED, read_gates
from mtl.probes.tables.gates_table import name_draws
from mtl.runs.compare.encoders import check_encoders, encoder_of
from mtl.runs.compare.left_out import chosen_of, nothing_left
from mtl.runs.compare.settings import draws_of
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import first_line


class NoMasks(InputError):
    """None of the runs has a mask."""


def gates_of(
    runs: Sequence[Run], tasks: Sequence[str] = (), *, shared_once: bool = True
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """All rows of the runs' gates.parquet with `learned`, `run`, `seed`, `draw`; notes on runs without masks.

    `learned` is `open` before a target's final choice forced heads (`LEARNED`). `draw` is the draw of the
    random labels of the mask's task (`Task.drawn`); if there are several draws, each is a task of its own
    (`name_draws`).

    `tasks` chooses among the tasks (empty: all). With `shared_once`, a mask that tasks share is taken once
    and named after all of them. Raises `InputError` if no run has masks of these tasks, a table is damaged,
    or the encoders differ.
    """
    check_encoders({str(run.folder): encoder_of(run) for run in runs})
    parts, notes = [], []
    for run in runs:
        path = run.folder / "gates.parquet"
        if not path.is_file():
            notes.append(f"{run.folder} has no masks (no gates.parquet): left out")
            continue
        table = _read(path)
        known = table["task"].unique(maintain_order=True).to_list()
        if chosen := chosen_of(known, tasks, str(run.folder), notes):
            part = table.filter(pl.col("task").is_in(chosen)) if tasks else table
            parts.append(
                (_shared_once(part, run) if shared_once else part).with_columns(
                    learned=LEARNED, run=pl.lit(str(run.folder)), seed=pl.lit(int(run.config()["seed"])),
                    draw=_draw(run),
                )
            )  # fmt: skip
    if not parts:
        raise NoMasks(str(nothing_left(notes, "nothing to draw: give runs trained with --pruning=dynamic")))
    return name_draws(pl.concat(parts)), tuple(notes)


def _draw(run: Run) -> pl.Expr:
    """The draw of random labels of each mask, if its task, or one of its tasks, has such labels."""
    of_task = (
        pl.when(pl.col("task").str.split("+").list.contains(name)).then(pl.lit(draw, pl.Int64))
        for name, draw in draws_of(run.config()).items()
    )
    return pl.coalesce(*of_task, pl.lit(None, pl.Int64))


def _read(path: Path) -> pl.DataFrame:
    """The table of a gates.parquet; raises `InputError` if it is damaged."""
    try:
        return read_gates(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = first_line(error)
        raise InputError(f"{path}: cannot be read ({reason}); train the run again") from error


def _shared_once(gates: pl.DataFrame, run: Run) -> pl.DataFrame:
    """If the run's tasks share a mask, its rows once, named after all tasks; otherwise all rows."""
    tasks = list(gates["task"].unique(maintain_order=True))
    if len(tasks) == 1 or run.config().get("gates", {}).get("scope") != "shared":
        return gates
    return gates.filter(pl.col("task") == tasks[0]).with_columns(task=pl.lit("+".join(tasks)))
