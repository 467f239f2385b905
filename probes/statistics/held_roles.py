"""Which heads have a role (Voita et al. 2019)."""

from __future__ import annotations

import polars as pl

from mtl.probes.measures.table import BY_NAME
from mtl.probes.sites import KEYS, in_order, sites_of
from mtl.probes.tables.label_scores import label_scores

POSITIONAL = 0.9
"""A head is positional if it looks at one relative position at least this often."""
SYNTACTIC_MARGIN = 0.1
"""A head has a syntactic role if it is this much above the best fixed offset on a relation that counts."""


def roles(heads: pl.DataFrame) -> pl.DataFrame:
    """The heads of a tidy table that have a positional or a syntactic role, beside the chance level.

    Columns: measure, task, label, attention, layer, head, value, chance (null for positional roles); the best
    head of a role comes first.
    """
    columns = ["measure", "task", "label", *KEYS, "value", "chance"]
    positional = heads.filter(
        (pl.col("measure") == "positional") & (pl.col("value") >= POSITIONAL)
    ).with_columns(chance=pl.lit(None, dtype=pl.Float64))
    arcs = label_scores(heads, {"syntactic": BY_NAME["syntactic"].chance or ""})
    far = pl.col("value") >= pl.col("chance") + SYNTACTIC_MARGIN
    syntactic = arcs.filter(pl.col("counted") & far)
    held = pl.concat([positional.select(columns), syntactic.select(columns)])
    order = ("measure", "task", "label", -pl.col("value"), in_order(sites_of(heads)), "layer", "head")
    return held.sort(*order)
