"""The masks of several runs in one table, and the masks that runs ended with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from mtl.errors import InputError
from mtl.heads.gate_file import LEARNED, read_gates
from mtl.probes.report.data import CHOICES
from mtl.probes.sites import KEYS
from mtl.probes.tables.heads_table import last_gates, name_draws
from mtl.runs.compare.comparable import RunWithSetup, line
from mtl.runs.compare.settings import check_encoders, draws_of, encoder_of, listed
from mtl.runs.compare.setups import chosen_of, nothing_left
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted, first_line


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


def masks_of(runs: Sequence[RunWithSetup], notes: list[str]) -> pl.DataFrame | None:
    """All masks at their last step, with `setup`; `None` if no run has masks. What is left out is noted."""
    parts: list[pl.DataFrame] = []
    used: list[Run] = []
    for run in runs:
        folder = run.run.folder
        maskless = run.config.get("pruning", "none") == "none" or bool(run.run.derivation())
        if maskless and not (folder / "gates.parquet").is_file():
            continue  # trained without gates, or derived: it should have no masks
        try:
            gates, left_out = gates_of([run.run])
            columns = ("run", "seed", "draw", "task", "step", *KEYS, "gate", "open", "learned")
            gates = last_gates(gates).select(columns)
            gates = gates.cast({"gate": pl.Float64, "layer": pl.Int32, "head": pl.Int32, "step": pl.Int64})
        except NoMasks:
            there = (folder / "gates.parquet").is_file()
            notes.append(
                f"{folder}/gates.parquet is empty: left out"
                if there
                else f"{folder} has no masks (no gates.parquet): left out"
            )
            continue
        except InputError as error:
            notes.append(str(error))
            continue
        except pl.exceptions.PolarsError as error:  # columns that are missing or of another type
            notes.append(f"{folder}/gates.parquet: cannot be used ({line(error)}); train the run again")
            continue
        notes += left_out
        used.append(run.run)
        parts.append(gates.with_columns(setup=pl.lit(run.setup.name)))
    notes += _forced(used)
    if runs and not parts:
        notes.append("no run has masks: train with --pruning=dynamic to see them")
    return name_draws(pl.concat(parts)) if parts else None


def choices_of(runs: Sequence[RunWithSetup]) -> pl.DataFrame | None:
    """What a target's final choice changed, a row per mask (`CHOICES`); `None` if no run has a target."""
    counts = CHOICES.names()[4:]
    rows = [
        (run.setup.name, str(run.run.folder), run.config["seed"], mask, *map(choice.get, counts))
        for run in runs
        for mask, choice in run.run.status().get("choices", {}).items()
    ]
    return pl.DataFrame(rows, schema=CHOICES, orient="row") if rows else None


def _forced(runs: Sequence[Run]) -> list[str]:
    """A note on the masks in which a target forced more than a tenth of the heads wanted, if there are any.

    It gives numbers and not shares, since more heads may be forced than are wanted. If kinds of attention
    have targets of their own, each of them counts.
    """
    masks: dict[tuple[Path, str], None] = {}
    numbers: list[tuple[int, int]] = []
    for run in runs:
        for name, choice in run.status().get("choices", {}).items():
            moved = choice["forced_open"] + choice["forced_closed"]
            wanted = choice["open_at_choice"] + choice["forced_open"] - choice["forced_closed"]
            if moved > 0.1 * wanted:
                masks[run.folder, name.partition("/")[0]] = None
                numbers.append((moved, wanted))
    if not masks:
        return []
    names = list(dict.fromkeys(folder.name for folder, _ in masks))
    forced, kept = map(_range, zip(*numbers, strict=True))
    return [
        f"{counted(len(masks), 'mask')} ({listed(names)}): training had not decided which {kept} heads to "
        f"keep, so {forced} heads of each were set at its end; raise max_epochs before you read such masks"
    ]


def _range(numbers: Sequence[int]) -> str:
    """The least and the greatest number; if they are equal, one of them."""
    least, most = min(numbers), max(numbers)
    return f"{least}" if least == most else f"{least} to {most}"
