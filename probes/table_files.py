"""Tidy tables as files: LaTeX for papers, CSV to look at, parquet to compute with."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import polars as pl

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
_SPECIAL = re.compile("|".join(map(re.escape, _LATEX)))
Format = Literal["tex", "csv", "parquet"]
FORMATS: tuple[Format, ...] = ("tex", "csv", "parquet")


def escape(text: str) -> str:
    """Text that LaTeX prints literally, on one line."""
    text = " ".join(text.split())
    return _SPECIAL.sub(lambda match: _LATEX[match.group()], text)


def latex(table: pl.DataFrame, decimals: int = 2) -> str:
    """A booktabs `tabular`: numbers to the right, texts to the left, null as a dash."""
    columns = "".join("r" if dtype.is_numeric() else "l" for dtype in table.dtypes)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _line([escape(name) for name in table.columns])]
    lines.append(r"\midrule")
    lines += [_line([_cell(value, decimals) for value in row]) for row in table.iter_rows()]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def write(table: pl.DataFrame, path: Path, kind: Format, decimals: int = 2) -> None:
    """Write the table as a file of this kind; `decimals` are those of LaTeX, the others keep all."""
    if kind == "tex":
        path.write_text(latex(table, decimals), encoding="utf-8")
    elif kind == "csv":
        table.write_csv(path)
    else:
        table.write_parquet(path)


def _line(cells: Iterable[str]) -> str:
    line = " & ".join(cells)
    # Behind the line before, which ends in two backslashes, these would be arguments.
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
        # A chance of 0.0004 is not 0.00.
        digits, exponent = f"{abs(value):.1e}".split("e")
        return rf"${sign}{digits}\cdot 10^{{{int(exponent)}}}$"
    return f"${sign}${text}" if sign else text
