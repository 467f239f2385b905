"""Tables as papers print them: shares in per cent as on the page, and of many heads what is found."""

from __future__ import annotations

import polars as pl

from mtl.probes.head_names import head_name
from mtl.probes.sites import KEYS, Site, sites_of
from mtl.probes.tables.label_scores import best_of_labels

_PER_CENT = ("static", "stl", "pair", "joint", "chance")
_SCALED = {
    "labels": (_PER_CENT, ()),
    "competition-heads": (("static", "stl", "joint"), ("loss",)),
    "competition-by-claims": ((), ("difference",)),
    "task-losses": ((), ("loss", "low", "high")),
}
"""By table the columns that are shares, and those that are differences of shares."""


def printed(name: str, table: pl.DataFrame) -> pl.DataFrame:
    """The report's table of this name as LaTeX gets it: shares in per cent, their differences in points."""
    if name == "competition-tests":
        in_points = pl.col("sides") == 2
        scaled = [
            pl.when(in_points).then(pl.col(column) * 100).otherwise(column).alias(column)
            for column in ("value", "low", "high")
        ]
        unit = pl.when(in_points).then(pl.lit("points")).otherwise(pl.lit("correlation"))
        return table.with_columns(*scaled, unit=unit)
    per_cent, points = _SCALED.get(name, ((), ()))
    units = dict.fromkeys(per_cent, "%") | dict.fromkeys(points, "points")
    return table.select(
        (100 * pl.col(column)).alias(f"{column}, {units[column]}") if column in units else column
        for column in table.columns
    )


def best_heads(skill: pl.DataFrame) -> pl.DataFrame:
    """The best head of each label, of a table `skills`: its name, accuracy and chance in per cent."""
    best = best_of_labels(skill, ("regime",)).sort("task", "count", "label", descending=[False, True, False])
    sites = sites_of(skill)
    heads = [
        head_name(Site(attention, layer), head, sites)
        for attention, layer, head in best.select(KEYS).iter_rows()
    ]
    return best.select(
        "regime", "task", "label", "count", pl.Series("best head", heads, dtype=pl.String),
        (100 * pl.col("value")).alias("accuracy, %"), (100 * pl.col("chance")).alias("chance, %"),
    )  # fmt: skip


def open_heads(table: pl.DataFrame, by: str, kept: str = "kept") -> pl.DataFrame:
    """Per mask (`by`) how many heads it keeps and how many it learned to, and the names of those kept."""
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
