"""The one writer of heads.parquet, which holds all measures on a run's heads.

Several commands and a training with a meter may write at once: each changes its own rows under a lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import polars as pl
import polars.selectors as cs

from mtl.errors import InputError, as_input_error
from mtl.files import check_file_place, whole_file
from mtl.probes.tables import heads_table as table
from mtl.runs.folder.run import mark_of
from mtl.tasks.in_words import counted
from mtl.workers.lease import changing


def write_measures(
    path: Path, rows: pl.DataFrame, replaced: Collection[str], provenance: Mapping[str, str | None]
) -> None:
    """Replace all rows of the `replaced` measures in the table by `rows`.

    Rows and provenance of other measures stay. Keys of `provenance` with a prefix belong to the measures of
    one command (`relevance.split`), keys without one to probing; `None` removes a key. Raises `InputError` if
    the file exists and is no such table, or if a value is not finite; `ValueError` for rows of a measure that
    is not among the replaced ones.
    """
    foreign = sorted(set(rows["measure"]) - set(replaced))
    if foreign:
        raise ValueError(f"rows of {foreign[0]!r}, which is not among the replaced measures")
    require_finite(rows, path)
    settings: dict[str, str | None] = {**provenance, **mark_of(path.parent)}
    with changing(path):
        if path.exists():
            before, known = read_measures(path)
            rows = pl.concat([before.filter(~pl.col("measure").is_in(replaced)), rows])
            settings = {**known, **settings}
        with whole_file(path) as temporary:
            table.write(temporary, rows, {key: value for key, value in settings.items() if value is not None})


def require_finite(rows: pl.DataFrame, path: Path) -> None:
    """Raise `InputError`, which names the first one, if a value that is to be written is not finite."""
    for column in rows.select(cs.float()).columns:
        wrong = rows.filter(~pl.col(column).is_finite())
        if not wrong.is_empty():
            row = wrong.row(0, named=True)
            where = ", ".join(
                f"{key} {row[key]}"
                for key in ("measure", "by", "task", "label", "layer", "head", "draw")
                if key in row
            )
            raise InputError(
                f"{path} is not written: {counted(wrong.height, 'value')} not finite, the first one "
                f"({column} {row[column]}) at {where}: does the model overflow?"
            )


def check_place(path: Path) -> None:
    """Raise `InputError` or `OSError` if measures cannot be written there; called before any is made."""
    if path.parent.exists() and not path.parent.is_dir():
        raise InputError(f"{path.parent}: not a folder; give --out=FOLDER")
    check_file_place(path)
    if path.exists():
        read_measures(path)


def forget_measures(path: Path, forgotten: Collection[str]) -> None:
    """Remove all rows of some measures from the table, or the file if it has no other rows."""
    with changing(path):
        heads, provenance = read_measures(path)
        rest = heads.filter(~pl.col("measure").is_in(forgotten))
        if rest.is_empty():
            path.unlink()
            return
        with whole_file(path) as temporary:
            table.write(temporary, rest, provenance)


def read_measures(path: Path) -> tuple[pl.DataFrame, dict[str, str]]:
    """The table and its provenance; raises `InputError` if the file is no such table."""
    with as_input_error():
        return table.read(path)
