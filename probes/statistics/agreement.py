"""How far two tables of heads agree: of two seeds, of two tasks in one run, of two corpora."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from mtl.probes.statistics.head_values import tables_of
from mtl.probes.statistics.rank_correlation import (
    DRAWS,
    Estimate,
    Strata,
    Values,
    Weights,
    centred,
    centred_ranks,
    estimate,
    head_weights,
)

Pairs = list[tuple[int, int]]
"""Pairs of tables, by their numbers."""
Centring = Callable[[Values, Weights, Int[np.ndarray, " known"]], Weights]
"""From values, weights and the numbers of heads to what is correlated: ranks or values less their mean."""
CELLS = 4_000_000
"""The most numbers in an array of correlations (draw, table, table) or vectors (draw, table, head): 32 MB."""

SCHEMA = pl.Schema(
    dict.fromkeys(("measure", "first", "second", "pairing"), pl.String)
    | dict.fromkeys(("pairs", "heads"), pl.Int64)
    | dict.fromkeys(("spearman", "low", "high", "within_layers", "within_low", "within_high"), pl.Float64)
    | dict.fromkeys(("pearson", "pearson_low", "pearson_high"), pl.Float64)
)


def agreement(values: pl.DataFrame, measure: str, draws: int = DRAWS, seed: int = 0) -> pl.DataFrame:
    """Correlations over heads between groups of tables, with the columns of `SCHEMA`.

    `values` are those of `head_values`, with a column `group`: what is compared, such as a task, or a task on
    a corpus. A group is compared with itself over all pairs of its runs (`pairing` is "other runs"). Two
    groups are compared within the same run if runs have both ("same run"), else over all pairs of their runs
    ("all runs"). Each row is a mean over pairs. Intervals are at 95 %, by a bootstrap over heads within
    layers: they are about these runs. Null: not defined.
    """
    chosen = values.filter(pl.col("measure") == measure)
    groups = list(chosen["group"].unique(maintain_order=True))
    vectors, strata = tables_of(chosen, ("group", "run"))
    places: dict[str, dict[str, int]] = {}
    for place, (group, run) in enumerate(vectors):
        places.setdefault(group, {})[run] = place
    compared: list[tuple[str, str, str, Pairs]] = []
    for first, second in itertools.combinations_with_replacement(groups, 2):
        pairing, pairs = _pairs(places[first], places[second], same=first == second)
        if pairs:
            compared.append((first, second, pairing, pairs))
    if not compared:
        return pl.DataFrame(schema=SCHEMA)
    tables = np.array(list(vectors.values()))
    weights = head_weights(strata, draws, np.random.default_rng(seed))
    known = ~np.isnan(tables)
    estimates = zip(
        *(_estimates(tables, [row[-1] for row in compared], weights, way) for way in _ways(strata)),
        strict=True,
    )
    rows = []
    for (first, second, pairing, pairs), (over_all, within, linear) in zip(compared, estimates, strict=True):
        heads = max(int((known[one] & known[other]).sum()) for one, other in pairs)
        rows.append((measure, first, second, pairing, len(pairs), heads, *over_all, *within, *linear))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").fill_nan(None)


def _pairs(first: Mapping[str, int], second: Mapping[str, int], *, same: bool) -> tuple[str, Pairs]:
    """How two groups are compared, and the pairs of tables (by their numbers) that are compared."""
    if same:
        return "other runs", list(itertools.combinations(first.values(), 2))
    common = [run for run in first if run in second]
    if common:
        return "same run", [(first[run], second[run]) for run in common]
    return "all runs", list(itertools.product(first.values(), second.values()))


def _ways(strata: Strata) -> tuple[Centring, Centring, Centring]:
    """Ranks over all heads, ranks within layers, and values as they are, less their mean."""

    def ranks(layers: Strata) -> Centring:
        return lambda values, weights, heads: centred_ranks(values, weights, layers[heads])

    return ranks(np.zeros_like(strata)), ranks(strata), lambda values, weights, _: centred(values, weights)


def _estimates(
    tables: Float[np.ndarray, "table head"], compared: Sequence[Pairs], weights: Weights, way: Centring
) -> list[Estimate]:
    """Per row the mean correlation over its pairs of tables, with its interval.

    Tables are standardised once per table and not once per pair, so that pairs cost only a product of
    matrices.
    """
    draws = np.concatenate([np.ones((1, weights.shape[1])), weights])  # the heads as they are come first
    means = np.empty((len(compared), len(draws)))
    at_once = max(1, CELLS // (len(tables) * max(tables.shape)))
    for start in range(0, len(draws), at_once):
        part = slice(start, start + at_once)
        correlations = _correlations(tables, draws[part], way)
        for row, pairs in enumerate(compared):
            one, other = np.array(pairs).T
            means[row, part] = correlations[:, one, other].mean(1)
    return [estimate(float(drawn[0]), drawn[1:]) for drawn in means]


def _correlations(
    tables: Float[np.ndarray, "table head"], weights: Weights, way: Centring
) -> Float[np.ndarray, "draw table table"]:
    """The correlations of all tables with each other, over heads that both have; NaN if there are none."""
    known = ~np.isnan(tables)
    patterns, of_pattern = np.unique(known, axis=0, return_inverse=True)
    found = np.full((len(weights), len(tables), len(tables)), np.nan)
    for one, other in itertools.combinations_with_replacement(range(len(patterns)), 2):
        heads = np.flatnonzero(patterns[one] & patterns[other])
        if not len(heads):
            continue
        rows, columns = (np.flatnonzero(of_pattern == number) for number in (one, other))
        left = _standardised(tables[rows], weights, way, heads)
        right = left if one == other else _standardised(tables[columns], weights, way, heads)
        block = left @ right.transpose(0, 2, 1)
        found[:, rows[:, None], columns] = block
        found[:, columns[:, None], rows] = block.transpose(0, 2, 1)
    return found


def _standardised(
    tables: Float[np.ndarray, "table head"], weights: Weights, way: Centring, heads: Int[np.ndarray, " known"]
) -> Float[np.ndarray, "draw table known"]:
    """Vectors of length 1 in each draw, whose inner products are correlations; NaN if nothing varies."""
    drawn = weights[:, heads]
    vectors = np.stack([way(table[heads], drawn, heads) for table in tables], axis=1)
    vectors *= np.sqrt(drawn)[:, None]
    length = np.sqrt((vectors**2).sum(-1, keepdims=True))
    return vectors / np.where(length > 0, length, np.nan)
