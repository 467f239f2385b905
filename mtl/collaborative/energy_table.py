"""Tables of query and key matrices: the variance that leading components capture, with its figure `energy`;
and mixing vectors."""

from __future__ import annotations

from pathlib import PurePath

import polars as pl
import polars.selectors as cs
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.errors import InputError
from mtl.probes.figures.style import COLUMN, INK, PANEL, looks_of, new_figure, open_frame, styled
from mtl.probes.tables.table_files import read_csv, read_parquet
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables

ENERGY = pl.Schema(
    {
        "model": pl.String,
        "attention": pl.String,
        "layer": pl.Int32,
        "head": pl.Int32,
        "matrix": pl.String,
        "component": pl.Int32,
        "captured": pl.Float64,
    }
)
"""A row per model, layer, head, matrix and number of leading components; layers and heads from 0.

`head` is null if all heads of the layer are taken together. `matrix` is `query` (W_Q), `key` (W_K) or
`product` (W_Q W_K^T). `captured` is the share, from 0 to 1, of the matrix's sum of squares that the leading
components capture.
"""
MIXING = pl.Schema(
    {
        "model": pl.String,
        "attention": pl.String,
        "layer": pl.Int32,
        "head": pl.Int32,
        "component": pl.Int32,
        "value": pl.Float64,
    }
)
"""A row per model, layer, head and shared component, all from 0: how much of the component the head takes."""
MATRICES = {"query": "W_Q", "key": "W_K", "product": "W_Q W_K^T"}
"""The matrices and their names in figures."""
SHARES = (0.5, 0.9, 0.95)
"""The shares of the variance whose components are counted."""


def components_needed(energy: pl.DataFrame) -> pl.DataFrame:
    """Per model, layer, head and matrix, how many components capture 50, 90 and 95 % (`needs_50`, ...).

    `of` is the number of all components. A share counts as reached within 1e-9, so that rounding does not add
    a component.
    """
    keys = ["model", "attention", "layer", "head", "matrix"]
    counted = [
        pl.col("component").filter(pl.col("captured") >= share - 1e-9).min().alias(f"needs_{share * 100:.0f}")
        for share in SHARES
    ]
    return energy.group_by(keys, maintain_order=True).agg(*counted, of=pl.col("component").max())


@styled
def energy_curves(energy: pl.DataFrame) -> Figure:
    """Per matrix, a panel for all heads of a layer together and one for single heads; a colour per model.

    `energy` has the schema `ENERGY`. Lines are means over layers (and heads). Heads share components if the
    heads of a layer together need fewer than one head needs times their number. With a single model, faint
    lines in the panels of all heads are its layers. Lines of the first models are wider, so that they can be
    seen below others that coincide with them.
    """
    models = list(energy["model"].unique(maintain_order=True))
    looks = {
        model: (look.colour, 1.1 + 1.1 * (len(models) - 1 - place))
        for place, (model, look) in enumerate(looks_of(models).items())
    }
    models = list(looks)
    figure = new_figure(PANEL * len(MATRICES) + 0.4 + 0.13 * len(models), COLUMN * 1.25)
    panels = figure.subplots(len(MATRICES), 2, squeeze=False)
    for row, (matrix, title) in zip(panels, MATRICES.items(), strict=True):
        of_matrix = energy.filter(matrix=matrix)
        for axes, apart in zip(row, (False, True), strict=True):
            chosen = of_matrix.filter(pl.col("head").is_not_null() if apart else pl.col("head").is_null())
            for model, (colour, width) in looks.items():
                _draw(axes, chosen.filter(model=model), colour, width, layers=len(models) == 1)
            axes.set_title(f"{title}, {'each head' if apart else 'all heads of a layer'}")
            axes.set_ylim(0, 102)
            axes.set_xlim(left=0)
            axes.axhline(90, color=INK, linewidth=0.5, linestyle=":")
            open_frame(axes)
        row[0].set_ylabel("captured, %")
    for axes in panels[-1]:
        axes.set_xlabel("leading components")
    names = [PurePath(model).name for model in models]
    labels = names if len(set(names)) == len(models) else models
    handles = [
        Line2D([], [], color=colour, linewidth=width, label=label)
        for label, (colour, width) in zip(labels, looks.values(), strict=True)
    ]
    figure.legend(handles=handles, loc="outside upper center")
    return figure


def _draw(axes: Axes, rows: pl.DataFrame, colour: str, width: float, *, layers: bool) -> None:
    """The mean over layers (and heads); a layer with fewer components has captured all after its last one."""
    if rows.is_empty():
        return
    keys = ["attention", "layer", "head"]
    wide = rows.pivot("component", index=keys, values="captured").drop(keys)
    filled = wide.fill_null(1.0)
    components = [0, *map(int, filled.columns)]
    if layers and rows["head"].null_count():
        for line in filled.iter_rows():
            axes.plot(
                components, [0, *(100 * value for value in line)], color=colour, linewidth=0.4, alpha=0.4
            )
    means = [0, *(100 * value for value in filled.mean().row(0))]
    axes.plot(components, means, color=colour, linewidth=width)


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
