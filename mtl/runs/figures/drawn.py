"""What a figure is drawn from, what drawing returns, and how the result is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from mtl.errors import InputError
from mtl.files import check_file_place, whole_file
from mtl.probes.figures.style import FORMATS, render
from mtl.probes.tables import table_files
from mtl.probes.tables.table_files import Units
from mtl.runs.folder.run import Run, is_probed_encoder


@dataclass(frozen=True)
class FigureRequest:
    """What a figure is drawn from; each figure uses what it needs."""

    paths: Sequence[Path]
    """Folders of runs; for figures of worth, also tables."""
    tasks: Sequence[str]
    """Only these tasks; empty: all."""
    split: str
    """Split of the scores."""
    measure: str
    """The measure on heads."""

    def runs(self) -> tuple[list[Run], tuple[str, ...]]:
        """The runs among the paths, and a note on folders of encoders that were probed before training.

        Raises `InputError` for other folders, and if there is no run.
        """
        probed = [path for path in self.paths if is_probed_encoder(path)]
        runs = [Run.open(path) for path in self.paths if path not in probed]
        if not runs:
            raise InputError("no run among these, only probes of encoders: give runs")
        names = ", ".join(map(str, probed))
        verb = "holds probes of an encoder" if len(probed) == 1 else "hold probes of encoders"
        return runs, (f"{names} {verb}, and no run: left out",) if probed else ()

    def one_path(self) -> Path:
        """The only path, for a figure of one run; raises `InputError` if there are several."""
        if len(self.paths) != 1:
            raise InputError(f"this figure shows one run, not {len(self.paths)}")
        return self.paths[0]


@dataclass(frozen=True)
class FigureWithTables:
    """A figure with notes and its numbers."""

    figure: Figure
    notes: tuple[str, ...] = ()
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """The numbers, by what is added to the stem of the figure's file name: '' or `-heads`."""
    printed: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """What is written as LaTeX instead of a table that is too long to be printed."""
    units: Mapping[str, Units] = field(default_factory=dict)
    """The units of the columns of each table, and of what is printed instead."""
    paper: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The columns of LaTeX, if not all (`table_files.in_print`)."""


def save(drawn: FigureWithTables, out: Path, tables: bool = True, sources: Sequence[Path] = ()) -> list[Path]:
    """Write the figure by its suffix (.pdf, .png, .svg) and its numbers beside it; returns the files.

    Each file holds the notes. Raises as `check_tables` does, before anything is written.
    """
    kind = next(name for name in FORMATS if name == out.suffix.lower().removeprefix("."))
    if tables:
        check_tables(out, drawn.tables, sources)
    contents = render(drawn.figure, kind, notes=drawn.notes)
    with whole_file(out) as path:
        path.write_bytes(contents)
    written = [out]
    for end, table in drawn.tables.items() if tables else ():
        for form in table_files.FORMATS:
            beside = out.with_name(f"{out.stem}{end}.{form}")
            with whole_file(beside) as path:
                shown = drawn.printed.get(end, table) if form == "tex" else table
                table_files.write_table_file(
                    shown,
                    path,
                    form,
                    notes=drawn.notes,
                    units=drawn.units.get(end, {}),
                    paper=drawn.paper.get(end, ()),
                )
            written.append(beside)
    return written


def check_tables(out: Path, ends: Iterable[str], sources: Sequence[Path] = ()) -> None:
    """Raise `InputError` or `OSError` if a table beside a figure cannot be written.

    `ends` are added to the stem of `out`. A table may replace neither one that the figure is drawn from
    (`sources`) nor a file that no figure wrote, such as a run's heads.parquet beside RUN/heads.png, or a
    user's own heads.tex that includes heads.pdf.
    """
    known = {source.resolve() for source in sources}
    for end in ends:
        paths = [out.with_name(f"{out.stem}{end}.{form}") for form in table_files.FORMATS]
        of_figure = _is_table(out.with_name(f"{out.stem}{end}.tex"))
        for path in paths:
            check_file_place(path)
            if path.resolve() in known or (path.exists() and not of_figure):
                raise InputError(
                    f"the figure's numbers would replace {path}: give another --out, or --tables=false"
                )


def _is_table(path: Path) -> bool:
    """Whether a LaTeX file is a table of a figure: these, and only these, begin with `tabular`."""
    return path.is_file() and path.read_bytes().startswith(rb"\begin{tabular}")
