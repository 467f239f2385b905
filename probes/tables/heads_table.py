"""The tidy table of measures on heads: heads.parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs
from jaxtyping import Float, Int

from mtl.probes.sites import Site
from mtl.probes.tables import table_files
from mtl.probes.tables.made_once import made_once

SCHEMA = pl.Schema(
    {
        "measure": pl.String,
        "task": pl.String,
        "label": pl.String,
        "attention": pl.String,
        "layer": pl.Int32,
        "head": pl.Int32,
        "value": pl.Float64,
        "count": pl.Int64,
        "choice": pl.String,
    }
)
"""A row per measure, task, label and head; layers and heads from 0, null if a value belongs to no head.

`attention` is the kind of attention, `self` in encoders; it names a head together with `layer` and `head`.

`choice` names the alternative that was taken if a definition leaves several, such as the columns that compete
for the most attended word, the source of centroids, or the epoch.
"""


def rows(
    measure: str,
    task: str,
    labels: Sequence[str],
    value: Float[np.ndarray, "label ..."],
    count: Int[np.ndarray, " label"],
    choice: str = "",
) -> pl.DataFrame:
    """The rows of a measure; labels that do not occur are left out, labels that are never hit are not.

    `value` is by label, layer and head, or by label and layer, or only by label, as a chance level may be.
    """
    label, *place = (axis.ravel() for axis in np.indices(value.shape))
    frame = pl.DataFrame(
        {
            "measure": measure,
            "task": task,
            "label": np.array(labels, dtype=object)[label].tolist(),
            "attention": "self",
            **dict.fromkeys(("layer", "head")),
            **dict(zip(("layer", "head"), place, strict=False)),
            "value": value.ravel(),
            "count": count[label],
            "choice": choice,
        },
        schema=SCHEMA,
    )
    return frame.filter(pl.col("count") > 0)


def at_sites(table: pl.DataFrame, sites: Sequence[Site]) -> pl.DataFrame:
    """Replace the numbers of sites in the column `layer` by each site's kind of attention and layer.

    Rows without a layer get the kind of attention of all sites, if there is only one.
    """
    kinds = {site.attention for site in sites}
    of_all = pl.lit(next(iter(kinds))) if len(kinds) == 1 else pl.col("attention")
    names = pl.DataFrame(
        {
            "layer": range(len(sites)),
            "kind": [site.attention for site in sites],
            "of_kind": [site.layer for site in sites],
        },
        schema={"layer": pl.Int32, "kind": pl.String, "of_kind": pl.Int32},
    )
    joined = table.join(names, on="layer", how="left", maintain_order="left")
    return joined.with_columns(
        attention=pl.coalesce("kind", of_all), layer=pl.coalesce("of_kind", "layer")
    ).select(table.columns)


def in_categories(table: pl.DataFrame) -> pl.DataFrame:
    """The table with texts as categories, which take a third of the memory and half of the time to group."""
    return table.with_columns(cs.string().cast(pl.Categorical))


def in_texts(table: pl.DataFrame) -> pl.DataFrame:
    """The table with categories as texts, to be joined with tables of texts."""
    return table.with_columns(cs.categorical().cast(pl.String))


@made_once
def runs_of(table: pl.DataFrame) -> pl.DataFrame:
    """The columns regime, run, seed and task as texts: each combination once, in order."""
    return in_texts(table.select("regime", "run", "seed", "task").unique(maintain_order=True))


def write(path: Path, table: pl.DataFrame, provenance: Mapping[str, str]) -> None:
    """Write the table with its provenance as the file's metadata."""
    table_files.write_parquet(table, path, provenance)


_OLDER = {"choice": "", "attention": "self"}
"""The values of columns that older files lack."""


def read(path: Path) -> tuple[pl.DataFrame, dict[str, str]]:
    """A table and its provenance; raises `ValueError` if the file cannot be read or lacks a column."""
    return table_files.read_complete(path, SCHEMA, "mtl probe", _OLDER)
