"""`mtl compare`."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console
from rich.table import Table

from mtl.errors import InputError
from mtl.runs.folder.run import Run
from mtl.tasks.ranges import Range, Seed

if TYPE_CHECKING:
    import polars as pl

    from mtl.runs.compare.comparison import RunComparison

_PICTURES, _TABLES = (".pdf", ".png", ".svg"), (".tex", ".csv", ".parquet")


def compare(
    runs: list[Path],
    *,
    against: list[Path],
    split: Literal["dev", "test"] = "test",
    tasks: tuple[str, ...] = (),
    level: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 0.95,
    draws: Annotated[int, Range(100, inf)] = 10_000,
    seed: Seed = 0,
    names: tuple[str, ...] = ("first", "second"),
    out: Path | None = None,
) -> None:
    """Test whether two sets of runs score differently, task by task.

    Args:
        runs: Runs of the first side, for instance one setup with several seeds.
        against: Runs of the second side. For each task, the runs that have it are compared.
        split: Split of the scores.
        tasks: Only these tasks, for instance --tasks=[pos,dep].
        level: Level of the intervals.
        draws: Resamples of sentences.
        seed: Random seed for the resamples.
        names: Names of the two sides in the figure.
        out: File for the table (.tex, .csv, .parquet), or for a figure (.pdf, .png, .svg) with the table
            beside it in all three formats.
    """
    from mtl.files import check_file_place
    from mtl.runs.compare.comparison import compare_runs

    if len(names) != 2:
        raise InputError(f"--names=[{','.join(names)}]: use two names, of the first and of the second side")
    if out is not None:
        if out.suffix.lower() not in (*_PICTURES, *_TABLES):
            raise InputError(f"{out}: use a file that ends in {', '.join((*_PICTURES, *_TABLES))}")
        check_file_place(out)
        if out.suffix.lower() in _PICTURES:
            from mtl.runs.figures.drawn import check_tables

            check_tables(out, ("",))
    first, second = ([Run.open(folder) for folder in side] for side in (runs, against))
    compared = compare_runs(first, second, split, tasks, level=level, draws=draws, seed=seed)
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 200
    console.print(_table(compared.table, split, level))
    for note in compared.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if out is not None:
        for path in _write(compared, out, names):
            console.print(f"wrote {path}", soft_wrap=True)


def _write(compared: RunComparison, out: Path, names: tuple[str, ...]) -> list[Path]:
    from mtl.files import whole_file
    from mtl.probes.figures.comparison import comparison_figure
    from mtl.probes.tables import table_files
    from mtl.runs.figures.drawn import FigureWithTables, save

    if out.suffix.lower() in _PICTURES:
        figure = comparison_figure(compared.table, *names)
        return save(FigureWithTables(figure, compared.notes, {"": compared.table}), out)
    kind = next(kind for kind in table_files.FORMATS if out.suffix.lower() == f".{kind}")
    with whole_file(out) as path:
        table_files.write(compared.table, path, kind, notes=compared.notes)
    return [out]


def _table(table: pl.DataFrame, split: str, level: float) -> Table:
    shown = Table(
        title=f"scores on {split}: the runs less those after --against, in points; intervals of {level:.0%}"
    )
    for column in ("task", "score"):
        shown.add_column(column)
    columns = (
        "runs", "mean", "against", "difference", "other sentences", "other runs", "both", "p, sentences",
        "p, both", "Holm",
    )  # fmt: skip
    for column in columns:
        shown.add_column(column, justify="right")
    for row in table.iter_rows(named=True):
        intervals = [
            "" if row[f"{key}_low"] is None else f"{row[f'{key}_low']:+.2f} to {row[f'{key}_high']:+.2f}"
            for key in ("sentences", "seeds", "both")
        ]
        chances = [_chance(row[key]) for key in ("p_sentences", "p", "holm")]
        shown.add_row(
            row["task"], row["score"], f"{row['runs']} and {row['runs_against']}", f"{row['mean']:.2f}",
            f"{row['mean_against']:.2f}", f"{row['difference']:+.2f}", *intervals, *chances,
        )  # fmt: skip
    return shown


def _chance(p: float | None) -> str:
    """A probability with four decimals; a smaller one is `<0.0001`, not 0."""
    if p is None:
        return ""
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"
