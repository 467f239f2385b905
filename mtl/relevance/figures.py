"""The figure `contributions`: what the source contributes to translations, by position."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from mtl.errors import InputError
from mtl.probes.figures.style import PANEL, looks_of, new_figure, open_frame, styled
from mtl.probes.tables.table_files import ColumnUnit
from mtl.relevance.contributions import COMMAND, MEASURES, means_by_position, read_contributions
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables

_TITLES = {
    "source_share": "source's share, %",
    "source_entropy": "entropy of source, nats",
    "target_entropy": "entropy of target, nats",
}
_UNITS = ColumnUnit.SHARE.of("source_share") | ColumnUnit.NATS.of("source_entropy", "target_entropy")
_COUNTED = 0.1
"""Positions that a smaller share of a run's sentences has are not drawn: these are few, and the longest."""


@styled
def contribution_lines(means: pl.DataFrame) -> Figure:
    """A panel for each of `MEASURES`, and in it a line for each run: the mean by position of the translation.

    `means`: rows of `means_by_position` with a column `run`.
    """
    runs = list(means["run"].unique(maintain_order=True))
    looks = looks_of(runs)
    figure = new_figure(PANEL * len(MEASURES) + 0.4 + 0.13 * len(runs))
    panels = figure.subplots(len(MEASURES), 1, sharex=True)
    for axes, measure in zip(panels, MEASURES, strict=True):
        for run, look in looks.items():
            rows = means.filter(run=run)
            rows = rows.filter(pl.col("sentences") >= _COUNTED * pl.col("sentences").max())
            values = rows[measure] * (100 if measure == "source_share" else 1)
            axes.plot(
                rows["position"], values, color=look.colour, marker=look.shape, linewidth=1.0,
                markersize=2.6,
            )  # fmt: skip
        axes.set_ylabel(_TITLES[measure])
        axes.set_ylim(bottom=0)
        open_frame(axes)
    panels[-1].set_xlabel("position of the translation")
    figure.legend(
        handles=[look.key(run, 2.8, 1.0) for run, look in looks.items()], loc="outside upper center"
    )
    return figure


def draw_contributions(request: FigureRequest) -> FigureWithTables:
    """Contributions of runs, or from tables that `mtl relevance --contributions` wrote."""
    parts: dict[str, pl.DataFrame] = {}
    names = [path.name if path.is_dir() else path.stem for path in request.paths]
    for path, name in zip(request.paths, names, strict=True):
        table = path / "contributions.parquet" if path.is_dir() else path
        if not table.is_file():
            raise InputError(f"{path} has no contributions: measure them with '{COMMAND}'")
        rows = read_contributions(table)
        if rows.is_empty():
            raise InputError(f"{table} has no rows: measure sentences that have a translation")
        parts[name if names.count(name) == 1 else str(path)] = means_by_position(rows)
    means = pl.concat([table.select(pl.lit(run).alias("run"), pl.all()) for run, table in parts.items()])
    note = f"positions of less than {_COUNTED:.0%} of a run's sentences are in the table only"
    return FigureWithTables(contribution_lines(means), (note,), {"": means}, units={"": _UNITS})
