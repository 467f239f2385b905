"""Tables as papers print them: shares in per cent as on the page, and summaries of tables of heads."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from mtl.probes.head_names import head_name
from mtl.probes.sites import KEYS, Site, sites_of
from mtl.probes.tables.label_scores import best_of_labels

_PER_CENT = ("static", "stl", "pair", "joint", "chance")


def labels(table: pl.DataFrame) -> pl.DataFrame:
    """A table `label_values` with shares in per cent."""
    return in_units(table, _PER_CENT)


def in_units(table: pl.DataFrame, per_cent: Collection[str], points: Collection[str] = ()) -> pl.DataFrame:
    """A table with these columns of shares in per cent, and these of differences of shares in points."""
    units = dict.fromkeys(per_cent, "%") | dict.fromkeys(points, "points")
    return table.select(
        (100 * pl.col(column)).alias(f"{column}, {units[column]}") if column in units else column
        for column in table.columns
    )


def best_heads(skill: pl.DataFrame) -> pl.DataFrame:
    """The best head of each label in a table `skills`, by name, with accuracy and chance in per cent."""
    best = best_of_labels(skill, ("regime",)).sort("task", "count", "label", descending=[False, True, False])
    sites = sites_of(skill)
    heads = [
        head_name(Site(attention, layer), head, sites)
        for attention, layer, head in best.select(KEYS).iter_rows()
    ]
    return best.select(
        "regime", "task", "label", "count", pl.Series("best head", heads, dtype=pl.String),
        (100 * pl.col("value")).alias("accuracy, %"), (100 * pl.col("chance")).alias("chance, %"),
        "counted",
    )  # fmt: skip


def open_heads(table: pl.DataFrame, by: str, kept: str = "kept") -> pl.DataFrame:
    """Per mask (`by`), how many heads it keeps, how many of them it learned to keep, and their names."""
    sites = sites_of(table)
    rows = []
    for (mask,), of_mask in table.group_by(by, maintain_order=True):
        cells = of_mask.filter(kept)
        names = [
            head_name(Site(kind, layer), head, sites) for kind, layer, head in cells.select(KEYS).iter_rows()
        ]
        learned = int((of_mask[kept] & of_mask["learned"]).sum())
        rows.append((mask, cells.height, learned, " ".join(names)))
    return pl.DataFrame(
        rows, {by: pl.String, "kept": pl.Int64, "learned": pl.Int64, "heads": pl.String}, orient="row"
    )
