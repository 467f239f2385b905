"""Tidy tables as files, the units of their columns, and the order of tasks: LaTeX, CSV, parquet.

Files are opened here and not by polars, which reads brackets in a path as a pattern and expands `~`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import polars as pl

from mtl.probes.appearance import ordered
from mtl.probes.sites import by_name, with_names
from mtl.tasks.catalogue import in_order_of_catalogue
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


def latex(
    table: pl.DataFrame,
    decimals: int = 2,
    units: Units = MappingProxyType({}),
    names: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """A booktabs `tabular`: numbers on the right, texts on the left, null as a dash, titles in words.

    `names` are titles of columns, without their units, that are printed as they are.
    """
    columns = "".join("r" if dtype.is_numeric() else "l" for dtype in table.dtypes)
    lines = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _line([escape(title) for title in _titles(table, units, names)]),
    ]
    lines.append(r"\midrule")
    lines += [_line([_cell(value, decimals) for value in row]) for row in table.iter_rows()]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _titles(table: pl.DataFrame, units: Units, names: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """The titles of columns: in words, but the names of a user as they are."""
    titles = []
    for column in table.columns:
        title, comma, unit = column.partition(", ")
        if title in names:
            titles.append(f"{names[title]}{comma}{unit}")
        else:
            titles.append(column if units.get(column) is ColumnUnit.NAMED else column.replace("_", " "))
    return titles


def markdown_table(
    table: pl.DataFrame, notes: Sequence[str] = (), units: Units = MappingProxyType({})
) -> str:
    """A table of texts in Markdown; null as a dash, titles in words. Notes are a list below it."""
    rows = [_titles(table, units), ["---"] * table.width, *table.rows()]
    cells = [["–" if value is None else str(value).replace("|", r"\|") for value in row] for row in rows]
    lines = [f"| {' | '.join(row)} |\n" for row in cells]
    return "".join([*lines, "\n" if notes else "", *(f"- {note}\n" for note in notes)])


def write_table_file(
    table: pl.DataFrame,
    path: Path,
    kind: Format,
    decimals: int = 2,
    notes: Sequence[str] = (),
    units: Units = MappingProxyType({}),
    paper: Sequence[str] = (),
    names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the table as a file of this kind; `decimals` are for LaTeX, since the others keep all decimals.

    Heads and layers have their names, in LaTeX instead of their numbers, in CSV in a further column `name`.
    JSON objects, such as versions, are texts in both. Notes on the numbers are comments in LaTeX, and a last
    column `notes` in the others. LaTeX has shares in per cent, their differences in points, and units in the
    titles, only the columns `paper` (`in_print`), and `names` as titles of columns; the others have the
    numbers as they are, and a note on their units.
    """
    if kind == "tex":
        table = in_print(table, units, paper, decimals)
    elif said := units_in_files(table, units):
        notes = (f"units: {said}", *notes)
    if notes and kind != "tex":
        table = table.with_columns(notes=pl.lit("; ".join(notes)))
    if kind == "tex":
        comments = "".join(f"% note: {' '.join(note.split())}\n" for note in notes)
        path.write_text(latex(by_name(_in_words(table)), decimals, units, names) + comments, encoding="utf-8")
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


def read_complete(path: Path, schema: Mapping[str, Any], command: str) -> tuple[pl.DataFrame, dict[str, str]]:
    """The columns of a schema from a parquet file that a command made, and the texts written with them.

    Raises `ValueError` if the file cannot be read or lacks a column. Commands add to such a file, so the
    command alone would refuse it again.
    """
    remedy = f"delete it, and make it again with '{command}'"
    try:
        table, metadata = read_parquet(path), read_metadata(path)
        missing = [name for name in schema if name not in table.columns]
        if missing:
            raise ValueError(f"{path}: no column {missing[0]!r}; {remedy}")
        return table.select(list(schema)).cast(pl.Schema(schema)), metadata
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"{path}: cannot be read ({first_line(error)}); {remedy}") from error


def read_csv(path: Path) -> pl.DataFrame:
    """The table in exactly this file; raises as `read_parquet` does."""
    with path.open("rb") as file:
        return pl.read_csv(file, infer_schema_length=None)  # a column may begin with many empty rows


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


class ColumnUnit(Enum):
    """What the values of a column are, with the unit in files for computing, and the unit in print."""

    TEXT = ("", "")
    FLAG = ("", "")
    COUNT = ("", "")
    P = ("", "")
    NUMBER = ("", "")
    """A number without a unit: a correlation, a Jaccard index, a gate, an expected count."""
    SHARE = ("shares", "%")
    CHANGE = ("differences of shares", "points")
    PERCENT = ("%", "%")
    POINTS = ("points", "points")
    SECONDS = ("s", "s")
    NATS = ("nats", "nats")
    NAMED = ("", "")
    """A column that has a name of a user, such as a task's: a title never changes it."""
    OF_ROW = ("the unit of the row", "")
    """Each row's unit is in the column `unit`."""

    def __init__(self, computed: str, printed: str):
        self.computed, self.printed = computed, printed

    # Members with equal values would be one member.
    def __new__(cls, *_: str) -> ColumnUnit:
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        return member

    def of(self, *columns: str) -> dict[str, ColumnUnit]:
        """These columns with this unit."""
        return dict.fromkeys(columns, self)


Units = Mapping[str, ColumnUnit]


@dataclass(frozen=True)
class About:
    """What a table's files say of its numbers."""

    units: Units = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What differences are taken from, what intervals and p come from, and the split of scores."""
    paper: tuple[str, ...] = ()
    """The columns of LaTeX, as `in_print` takes them, at most seven; empty: all."""


OF_MEASURES = {
    "share": ColumnUnit.SHARE,
    "points": ColumnUnit.POINTS,
    "nats": ColumnUnit.NATS,
    "number": ColumnUnit.NUMBER,
}
"""The units of measures on heads (`mtl.probes.measures.groups`)."""
DTYPES = {ColumnUnit.TEXT: pl.String, ColumnUnit.FLAG: pl.Boolean, ColumnUnit.COUNT: pl.Int64}
CHANGE_OF_ROW = "difference of shares"
"""In a column `unit`, a row whose numbers are printed in points."""


def types_of(units: Units) -> dict[str, Any]:
    """The types of a table's columns, for a schema; all but texts, flags and counts are floats."""
    return {name: DTYPES.get(unit, pl.Float64) for name, unit in units.items()}


def in_print(table: pl.DataFrame, units: Units, paper: Sequence[str] = (), decimals: int = 2) -> pl.DataFrame:
    """The table as papers print it: shares in per cent, their differences in points, units in the titles.

    With `paper`, only these columns, as far as the table has them; `low high` is one column of intervals.
    """
    columns = []
    for name in table.columns:
        unit, column = units.get(name), pl.col(name)
        if unit in (ColumnUnit.SHARE, ColumnUnit.CHANGE):
            column = 100 * column
        elif unit is ColumnUnit.OF_ROW:
            column = pl.when(pl.col("unit") == CHANGE_OF_ROW).then(100 * column).otherwise(column)
        elif name == "unit" and ColumnUnit.OF_ROW in units.values():
            column = column.replace({CHANGE_OF_ROW: ColumnUnit.CHANGE.printed})
        printed = "" if unit is None else unit.printed
        columns.append(column.alias(f"{name}, {printed}" if printed else name))
    whole = table.select(columns)
    titles = dict(zip(table.columns, whole.columns, strict=True))
    if not paper:
        return whole
    chosen = []
    for name in paper:
        ends = [titles[end] for end in name.split() if end in titles]
        if len(ends) == 2:
            texts = [_interval(low, high, decimals) for low, high in whole.select(ends).iter_rows()]
            _, comma, of = ends[0].partition(", ")
            chosen.append(pl.Series(f"interval{comma}{of}", texts, pl.String))
        elif ends:
            chosen.append(whole[ends[0]])
    return pl.DataFrame(chosen)


def _interval(low: float | None, high: float | None, decimals: int) -> str | None:
    if low is None or high is None:
        return None
    return f"{low:.{decimals}f} to {high:.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def units_in_files(table: pl.DataFrame, units: Units) -> str:
    """The units of the table's columns as files for computing have them; empty if no column has one."""
    by_unit: dict[str, list[str]] = {}
    for name in table.columns:
        if name in units and (unit := units[name].computed):
            by_unit.setdefault(unit, []).append(name)
    return "; ".join(f"{', '.join(names)} in {unit}" for unit, names in by_unit.items())


def undeclared(table: pl.DataFrame, units: Units) -> list[str]:
    """The columns of floats whose unit is not declared."""
    return [name for name, kind in table.schema.items() if kind.is_float() and name not in units]


def tasks_in(table: pl.DataFrame, column: str = "task") -> list[str]:
    """The tasks in a column, in the order of `mtl.probes.appearance`, others in the catalogue's."""
    return ordered(in_order_of_catalogue(table[column].unique()))


def by_catalogue(table: pl.DataFrame, column: str = "task") -> pl.DataFrame:
    """The rows, sorted by the task in a column in the order of `tasks_in`; a task's rows keep their order."""
    place = {name: number for number, name in enumerate(tasks_in(table, column))}
    return table.sort(pl.col(column).replace_strict(place, return_dtype=pl.Int64), maintain_order=True)
