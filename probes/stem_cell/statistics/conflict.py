"""Do tasks pull contested heads apart? Cosines of two tasks' gradients by who claims the head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from mtl.probes.sites import KEYS
from mtl.probes.statistics.resampling import permutations_within
from mtl.probes.statistics.stratified_tests import inverted_interval, mean_difference

CLASSES = ("neither", "one", "both")


@dataclass(frozen=True)
class ConflictByClaims:
    """Mean cosines, and the difference between heads that both claim and heads that one claims."""

    heads: pl.DataFrame
    """pair, attention, layer, head, claims (one of `CLASSES`), cosine (mean over seeds), seeds."""
    difference: float
    """Cosine at heads that both claim less that at heads that one claims, within pairs and layers."""
    low: float
    high: float
    p: float
    """One-sided: of a difference as low."""


def of_pairs(cosines: pl.DataFrame) -> pl.DataFrame:
    """The cosines of two different tasks."""
    return cosines.filter(pl.col("first") != pl.col("second"))


def of_twins(cosines: pl.DataFrame) -> pl.DataFrame:
    """The cosines of two decoders for one task."""
    return cosines.filter(pl.col("first") == pl.col("second"))


def conflict_by_claims(
    cosines: pl.DataFrame, claims: pl.DataFrame, level: float = 0.05, draws: int = 4999, seed: int = 0
) -> ConflictByClaims:
    """Compare, within each pair and layer, heads that both tasks claim with heads that one of them claims.

    `cosines`: first, second, seed, attention, layer, head, cosine. `claims`: task, attention, layer, head,
    claimed. Seeds are averaged first. p and interval by permuting the claimed heads of a pair within
    their layer, which takes a head's cosines in several pairs as independent: read it beside the mean of
    twins, which is what two decoders for one task have. `level` is the error of both sides of the interval
    together. All figures are NaN if no layer of a pair has heads of both classes. Raises `ValueError` without
    a pair that has claims.
    """
    of = claims.select("task", *KEYS, "claimed")
    joined = (
        cosines.group_by("first", "second", *KEYS, maintain_order=True)
        .agg(pl.col("cosine").mean(), seeds=pl.col("seed").n_unique())
        .join(of.rename({"task": "first", "claimed": "one"}), on=["first", *KEYS])
        .join(of.rename({"task": "second", "claimed": "other"}), on=["second", *KEYS])
    )
    if joined.is_empty():
        raise ValueError("no pair with recorded gradients whose tasks both have claims")
    number = pl.col("one").cast(pl.Int64) + pl.col("other").cast(pl.Int64)
    heads = joined.select(
        pl.format("{}+{}", "first", "second").alias("pair"), *KEYS,
        number.replace_strict(dict(enumerate(CLASSES)), return_dtype=pl.String).alias("claims"),
        "cosine", "seeds",
    )  # fmt: skip
    claimed = heads.filter(pl.col("claims") != CLASSES[0])
    strata = claimed.select(pl.struct("pair", "attention", "layer").rank("dense").cast(pl.Int64))
    layers = strata.to_series().to_numpy()
    values, both = claimed["cosine"].to_numpy(), (claimed["claims"] == CLASSES[2]).to_numpy()
    weights = mean_difference(values, both, layers)
    if np.isnan(weights).any():
        nan = float("nan")
        return ConflictByClaims(heads, nan, nan, nan, nan)
    orders = permutations_within(layers, draws, np.random.default_rng(seed))
    observed = float(values @ weights)
    p = float((1 + (values[orders] @ weights <= observed + 1e-12).sum()) / (1 + draws))
    low, high = inverted_interval(values, both, weights, orders, 1 - level)
    return ConflictByClaims(heads, observed, low, high, p)
