"""The relevance of heads by layer, as a table on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import polars as pl


def show(heads: pl.DataFrame, console: Console) -> None:
    """Print the most relevant head of every layer, with its share of the layer."""
    import polars as pl

    from mtl.probes.head_names import head_name, layer_name
    from mtl.probes.sites import Site, sites_of
    from mtl.probes.tables.best_heads import per_cent

    shares = heads.filter(measure="relevance")
    titles = [
        f"{row['task']} {row['label']}".strip() + f" ({row['count']:,})"
        for row in shares.unique(["task", "label"], maintain_order=True).iter_rows(named=True)
    ]
    shown = Table(title="most relevant head, and its share of the layer in % (sentences)")
    for title in ("layer", *titles):
        shown.add_column(title, justify="right", overflow="fold")
    of_layer = ["attention", "layer"]
    best = shares.group_by("task", "label", *of_layer, maintain_order=True).agg(
        pl.all().sort_by("value", descending=True).first()
    )
    sites = sites_of(best)
    for (kind, layer), cells in best.group_by(of_layer, maintain_order=True):
        site = Site(str(kind), int(str(layer)))
        numbers = [
            f"{head_name(site, row['head'], sites)} ({per_cent(row['value'])})"
            if row["value"]
            else "none open"
            for row in cells.iter_rows(named=True)
        ]
        shown.add_row(layer_name(site, sites), *numbers)
    console.print(shown)
