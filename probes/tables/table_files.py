"""Tidy tables as files: LaTeX for papers, CSV for reading, parquet for computing.

Files are opened here and not by polars, which reads brackets in a path as a pattern and expands `~`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import polars as pl

from mtl.probes.head_names import by_name, with_names
from mtl.tasks.in_words import first_line

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "±": r"$\pm$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\N{MINUS SIGN}": "$-$",
}
_SPECIAL = re.compile("|".join(map(re.escape, _LATEX)))
_BOLD = re.compile(r"\*\*(.+)\*\*")
Format = Literal["tex", "csv", "parquet"]
FORMATS: tuple[Format, ...] = ("tex", "csv", "parquet")


def escape(text: str) -> str:
    """Text that LaTeX prints literally, on one line; text between `**` is bold."""
    text = " ".join(text.split())
    if bold := _BOLD.fullmatch(text):
        return rf"\textbf{{{escape(bold[1])}}}"
    return _SPECIAL.sub(lambda match: _LATEX[match.group()], text)


def latex(table: pl.DataFrame, decimals: int = 2) -> str:
    """A booktabs `tabular`: numbers on the right, texts on the left, null as a dash, titles in words."""
    columns = "".join("r" if dtype.is_numeric() else "l" for dtype in table.dtypes)
    lines = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _line([escape(name.replace("_", " ")) for name in table.columns]),
    ]
    lines.append(r"\midrule")
    lines += [_line([_cell(value, decimals) for value in row]) for row in table.iter_rows()]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def markdown(table: pl.DataFrame) -> str:
    """A table of texts in Markdown; null as a dash, titles in words."""
    rows = [[name.replace("_", " ") for name in table.columns], ["---"] * table.width, *table.rows()]
    cells = [["–" if value is None else str(value).replace("|", r"\|") for value in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def write(
    table: pl.DataFrame, path: Path, kind: Format, decimals: int = 2, notes: Sequence[str] = ()
) -> None:
    """Write the table as a file of this kind; `decimals` are for LaTeX, since the others keep all decimals.

    Heads and layers have their names, in LaTeX instead of their numbers, in CSV in a further column `name`.
    JSON objects, such as versions, are texts in both. Notes on the numbers are comments in LaTeX, and a last
    column `notes` in the others.
    """
    if notes and kind != "tex":
        table = table.with_columns(notes=pl.lit("; ".join(notes)))
    if kind == "tex":
        comments = "".join(f"% note: {' '.join(note.split())}\n" for note in notes)
        path.write_text(latex(by_name(_in_words(table)), decimals) + comments, encoding="utf-8")
    elif kind == "csv":
        with path.open("wb") as file:
            with_names(_in_words(table)).write_csv(file)
    else:
        write_parquet(table, path)


def write_parquet(table: pl.DataFrame, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write the table, with texts by name as its metadata."""
    with path.open("wb") as file:
        table.write_parquet(file, metadata=None if metadata is None else dict(metadata))


def read_parquet(path: Path) -> pl.DataFrame:
    """The table in exactly this file; raises what polars raises, or `OSError`."""
    with path.open("rb") as file:
        return pl.read_parquet(file)


def read_metadata(path: Path) -> dict[str, str]:
    """The texts that were written with a parquet file's table; raises as `read_parquet` does."""
    with path.open("rb") as file:
        metadata = pl.read_parquet_metadata(file)
    return {key: value for key, value in metadata.items() if key != "ARROW:schema"}


def read_complete(
    path: Path, schema: Mapping[str, Any], command: str, older: Mapping[str, str] = MappingProxyType({})
) -> tuple[pl.DataFrame, dict[str, str]]:
    """The columns of a schema from a parquet file that a command made, and the texts written with them.

    `older` has the values of columns that files of older versions lack. Raises `ValueError` if the file
    cannot be read or lacks another column.
    """
    try:
        table, metadata = read_parquet(path), read_metadata(path)
        absent = {name: pl.lit(value) for name, value in older.items() if name not in table.columns}
        missing = [name for name in schema if name not in table.columns and name not in absent]
        if missing:
            raise ValueError(f"{path}: no column {missing[0]!r}; make the table with '{command}'")
        return table.with_columns(**absent).select(list(schema)).cast(pl.Schema(schema)), metadata
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"{path}: cannot be read ({first_line(error)}); make it with '{command}'") from error


def read_csv(path: Path) -> pl.DataFrame:
    """The table in exactly this file; raises as `read_parquet` does."""
    with path.open("rb") as file:
        return pl.read_csv(file)


def _in_words(table: pl.DataFrame) -> pl.DataFrame:
    """The table with JSON objects as texts, such as `python 3.11.7, torch 2.13.0`."""
    texts = [name for name, dtype in table.schema.items() if dtype == pl.String]
    return table.with_columns(
        pl.Series(name, [_of_json(value) for value in table[name]], dtype=pl.String)
        for name in texts
        if table[name].str.starts_with("{").any()
    )


def _of_json(value: str | None) -> str | None:
    try:
        parsed = json.loads(value or "")
    except ValueError:
        return value
    if not isinstance(parsed, dict):
        return value
    return ", ".join(f"{name} {part}" for name, part in parsed.items())


def _line(cells: Iterable[str]) -> str:
    line = " & ".join(cells)
    # After the previous line, which ends in two backslashes, these would be arguments.
    return ("{}" if line.startswith(("[", "*")) else "") + line + r" \\"


def _cell(value: object, decimals: int) -> str:
    if value is None:
        return "--"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape(str(value))
    if isinstance(value, int):
        return f"{value}" if value >= 0 else f"$-${-value}"
    if not math.isfinite(value):
        return "--" if math.isnan(value) else r"$\infty$" if value > 0 else r"$-\infty$"
    sign, text = "-" if value < 0 else "", f"{abs(value):.{decimals}f}"
    if value and float(text) == 0:
        # A p of 0.0004 is not 0.00.
        digits, exponent = f"{abs(value):.1e}".split("e")
        return rf"${sign}{digits}\cdot 10^{{{int(exponent)}}}$"
    return f"${sign}${text}" if sign else text
