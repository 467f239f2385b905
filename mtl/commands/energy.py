"""`mtl energy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import polars as pl


def energy(
    models: list[str],
    out: Path | None = None,
    figure: Path | None = None,
    mixing: Path | None = None,
) -> None:
    """Measure how many components the query and key matrices of heads need, apart and together.

    Args:
        models: Folders of runs, models or encoders, names of these on the hub, or 'minilm'.
        out: File for the table of captured variance: .parquet or .csv.
        figure: File for a figure of it: .pdf, .png or .svg.
        mixing: Table of the mixing vectors of models whose heads share components: .parquet or .csv.
    """
    import polars as pl

    from mtl.analysis.costs.energy import energy as energy_of
    from mtl.analysis.costs.energy import mixing as mixing_of
    from mtl.commands.tables_out import check_table, write_table
    from mtl.errors import InputError
    from mtl.models.opened import open_target
    from mtl.probes.figures.style import FORMATS
    from mtl.probes.tables.energy_table import components_needed

    for path in (out, mixing):
        check_table(path)
    if out is not None and out == mixing:
        raise InputError(f"--out and --mixing name the same file, {out}: give each its own")
    if figure is not None and figure.suffix.lower().removeprefix(".") not in FORMATS:
        raise InputError(f"{figure}: use a file that ends in .{', .'.join(FORMATS)}")
    if len(set(models)) < len(models):
        raise InputError("a model is given twice: name each once")
    parts, mixed = [], []
    for name in models:
        transformer = open_target(name).encoder.transformer
        parts.append(energy_of(transformer, name))
        if mixing is not None:
            mixed.append(mixing_of(transformer, name))
    table = pl.concat(parts)
    console = Console(markup=False, emoji=False)
    needed = components_needed(table)
    for name in models:
        _show(name, needed.filter(model=name), console)
    if len(models) > 1:
        _compare(needed, console)
    if figure is not None:
        from mtl.probes.figures.energy import energy_curves
        from mtl.runs.figures.drawn import FigureWithTables, save

        save(FigureWithTables(energy_curves(table)), figure, tables=False)
        console.print(f"wrote {figure}", highlight=False, soft_wrap=True)
    if out is not None:
        write_table(table, out, console)
    if mixing is not None:
        write_table(pl.concat(mixed), mixing, console)


def _show(name: str, needed: pl.DataFrame, console: Console) -> None:
    """Print, per layer, the components for 50, 90 and 95 % of the variance; of single heads, their mean."""
    import polars as pl

    from mtl.probes.head_names import layer_name
    from mtl.probes.sites import Site, sites_of
    from mtl.probes.tables.energy_table import MATRICES

    sites = sites_of(needed)
    for where, alone in {"all heads of a layer": False, "a head (mean)": True}.items():
        rows = needed.filter(pl.col("head").is_not_null() == alone)
        shown = Table(title=f"{name}, {where}: components for 50 / 90 / 95 % of the variance")
        shown.add_column("layer")
        for title in MATRICES.values():
            shown.add_column(title, justify="right", no_wrap=True)
        for attention, layer in rows.select("attention", "layer").unique(maintain_order=True).iter_rows():
            of_layer = rows.filter(attention=attention, layer=layer)
            cells = [_counts(of_layer.filter(matrix=matrix)) for matrix in MATRICES]
            shown.add_row(layer_name(Site(attention, layer), sites), *cells)
        shown.add_section()
        shown.add_row("mean", *(_counts(rows.filter(matrix=matrix)) for matrix in MATRICES))
        console.print(shown)


def _compare(needed: pl.DataFrame, console: Console) -> None:
    """Print, per model, the components for 90 % of the variance, as means over layers."""
    import polars as pl

    from mtl.probes.tables.energy_table import MATRICES

    shown = Table(title="components for 90 % of the variance, means over layers")
    shown.add_column("model", overflow="fold")
    for where in ("all heads", "a head"):
        for title in MATRICES.values():
            shown.add_column(f"{where}\n{title}", justify="right", no_wrap=True)
    for (name,), rows in needed.group_by("model", maintain_order=True):
        cells = []
        for alone in (False, True):
            chosen = rows.filter(pl.col("head").is_not_null() == alone)
            for matrix in MATRICES:
                [mean] = chosen.filter(matrix=matrix).select("needs_90").mean().row(0)
                cells.append(f"{mean:.1f}")
        shown.add_row(str(name), *cells)
    console.print(shown)


def _counts(rows: pl.DataFrame) -> str:
    means = rows.select("needs_50", "needs_90", "needs_95").mean().row(0)
    return " / ".join(f"{mean:.0f}" if rows.height == 1 else f"{mean:.1f}" for mean in means)
