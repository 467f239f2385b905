"""The figure of the variance that leading components of query and key matrices capture."""

from __future__ import annotations

import polars as pl
import polars.selectors as cs

from mtl.errors import InputError
from mtl.probes.figures.energy import energy_curves
from mtl.probes.tables.energy_table import ENERGY, components_needed
from mtl.probes.tables.table_files import read_csv, read_parquet
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables


def captured(request: FigureRequest) -> FigureWithTables:
    """Captured variance from tables that `mtl energy` wrote, with their models side by side."""
    parts = []
    for path in request.paths:
        try:
            table = read_csv(path) if path.suffix == ".csv" else read_parquet(path)
            parts.append(table.select(ENERGY.names()).cast(ENERGY))
        except (OSError, pl.exceptions.PolarsError) as error:
            raise InputError(
                f"{path} is not a table of captured variance: give files that 'mtl energy … --out=FILE' wrote"
            ) from error
    energy = pl.concat(parts).unique(ENERGY.names()[:-1], maintain_order=True)
    if not energy.select(pl.all_horizontal(cs.float().is_finite())).to_series().all():
        raise InputError("the tables have values that are not finite: make them again with 'mtl energy'")
    if energy.is_empty():
        raise InputError("the tables have no rows: no layer of the models has heads")
    return FigureWithTables(energy_curves(energy), (), {"": components_needed(energy)})
