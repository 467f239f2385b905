"""Do tasks pull contested heads apart? Cosines of two tasks' gradients by who claims the head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from mtl.probes.sites import KEYS
from mtl.probes.statistics.significance import accepted_interval, mean_difference, permutations_within
from mtl.probes.tables.table_files import ColumnUnit

CLASSES = ("neither", "one", "both")
CONFLICT_UNITS = ColumnUnit.NUMBER.of("cosine")


@dataclass(frozen=True)
class ConflictByClaims:
    """Mean cosines, and the difference between heads that both tasks claim and heads that one claims."""

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
    claimed. Seeds are averaged first. p and interval come from permuting heads within their layer, in one
    order for all pairs, so that a head whose cosines are high in all pairs counts once. Before that, the
    difference between heads that some task claims and heads that neither claims is taken out of the cosines.
    Read the result beside the mean of twins, the cosine of two decoders for one task. `level` is the error of
    both sides of the interval together. All numbers are NaN if no layer of a pair has heads of both classes.
    Raises `ValueError` if no pair has claims, or if pairs have cosines of different heads.
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
    cells = heads.select(KEYS).unique().sort(KEYS)
    pairs = [of_pair.sort(KEYS) for of_pair in heads.partition_by("pair", maintain_order=True)]
    if any(not of_pair.select(KEYS).equals(cells) for of_pair in pairs):
        raise ValueError("pairs have cosines of different heads: use pairs of one encoder, measured alike")
    values = np.stack([of_pair["cosine"].to_numpy() for of_pair in pairs])
    claimed = np.stack([(of_pair["claims"] != CLASSES[0]).to_numpy() for of_pair in pairs])
    both = np.stack([(of_pair["claims"] == CLASSES[2]).to_numpy() for of_pair in pairs])
    layers = cells.select(pl.struct("attention", "layer").rank("dense").cast(pl.Int64)).to_series().to_numpy()
    strata = layers + (layers.max() + 1) * np.arange(len(pairs))[:, None]
    weights = np.zeros(values.shape)
    weights[claimed] = mean_difference(values[claimed], both[claimed], strata[claimed])
    if np.isnan(weights).any():
        nan = float("nan")
        return ConflictByClaims(heads, nan, nan, nan, nan)
    groups = 2 * strata + claimed
    rest, shift = _centred(values, groups), _centred(both.astype(np.float64), groups)
    orders = permutations_within(layers, draws, np.random.default_rng(seed))
    observed = float((values * weights).sum())
    drawn, moved = np.zeros(draws), np.zeros(draws)
    for weight, of_pair, of_shift in zip(weights, rest, shift, strict=True):
        drawn += of_pair[orders] @ weight
        moved += of_shift[orders] @ weight
    p = float((1 + (drawn <= observed + 1e-12).sum()) / (1 + draws))
    low, high = accepted_interval(observed - drawn, 1 - moved, 1.0, level)
    return ConflictByClaims(heads, observed, low, high, p)


def _centred(
    values: Float[np.ndarray, "pair head"], groups: Int[np.ndarray, "pair head"]
) -> Float[np.ndarray, "pair head"]:
    """Values less the mean of their group, scaled up for the variance that taking out the mean removes."""
    _, place = np.unique(groups, return_inverse=True)
    place = place.ravel()
    sums, counts = np.bincount(place, values.ravel()), np.bincount(place)
    kept = np.sqrt(counts / np.maximum(counts - 1, 1))
    return ((values.ravel() - (sums / counts)[place]) * kept[place]).reshape(values.shape)
