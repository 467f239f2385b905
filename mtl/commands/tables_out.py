"""Tables that a command writes to a given file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mtl.errors import InputError

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

_KINDS = (".parquet", ".csv")


def check_table(path: Path | None) -> None:
    """Raise `InputError` for a file that has another suffix than a table, or whose folder does not exist."""
    if path is None:
        return
    if path.suffix not in _KINDS:
        raise InputError(f"{path}: use a file that ends in {' or '.join(_KINDS)}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist: make it, or use another one")


def write_table(table: pl.DataFrame, path: Path, console: Console) -> None:
    """Write a table in the format of its file's suffix, and print a line on it."""
    from mtl.files import whole_file
    from mtl.probes.tables import table_files

    with whole_file(path) as file:
        table_files.write(table, file, "csv" if path.suffix == ".csv" else "parquet")
    console.print(f"wrote {path}", highlight=False, soft_wrap=True)
