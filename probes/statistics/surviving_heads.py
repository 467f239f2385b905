"""Which roles and kinds of heads survive pruning (Voita et al. 2019, figures 7 and 8)."""

from __future__ import annotations

import polars as pl

from mtl.probes.sites import KEYS
from mtl.probes.statistics.held_roles import roles

RARE_WORDS = 0.5
"""A head looks at rare words if it attends most to the sentence's rarest word at least this often."""
ROLES = ("positional", "syntactic", "rare_words")


def heads_with_roles(heads: pl.DataFrame) -> pl.DataFrame:
    """The heads in heads.parquet that have a role, each once per role: role, attention, layer, head."""
    held = roles(heads).select(pl.col("measure").alias("role"), *KEYS)
    rare = heads.filter((pl.col("measure") == "rare_words") & (pl.col("value") >= RARE_WORDS))
    return pl.concat([held, rare.select(pl.col("measure").alias("role"), *KEYS)]).unique(maintain_order=True)


def surviving_roles(orders: pl.DataFrame, points: pl.DataFrame, with_roles: pl.DataFrame) -> pl.DataFrame:
    """Per point of a curve and role, the share of the role's heads that are still kept.

    `orders` and `points` are rows of curve_heads.parquet and curve.parquet. Columns: by, draw, task, role,
    kept, share (of all heads: what a role keeps by chance), with_role (heads of the role at the start),
    surviving (the share of these that is kept).
    """
    of_role = orders.join(with_roles, on=list(KEYS))
    return _surviving(of_role, points, "role").rename({"at_start": "with_role"})


def surviving_kinds(orders: pl.DataFrame, points: pl.DataFrame) -> pl.DataFrame:
    """Per point of a curve and kind of attention, the share of the kind's heads that are still kept.

    `orders` and `points` as in `surviving_roles`. Columns: by, draw, task, attention, kept, share (of all
    heads), at_start (heads of the kind at the start), surviving (the share of these that is kept).
    """
    return _surviving(orders, points, "attention")


def _surviving(heads: pl.DataFrame, points: pl.DataFrame, group: str) -> pl.DataFrame:
    """Per point of a curve, the share of each group's heads that are still kept."""
    part = ["by", "draw", "task"]
    at = points.select(*part, "kept", "share").unique(maintain_order=True)
    return (
        heads.join(at, on=part)
        .group_by(*part, group, "kept", "share", maintain_order=True)
        .agg(at_start=pl.len(), surviving=(pl.col("rank") < pl.col("kept")).mean())
    )
