"""How far two tables say the same of the heads: two seeds, two tasks of one run, two corpora."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from probes.statistics.head_values import tables_of
from probes.statistics.rank_correlation import (
    DRAWS,
    Estimate,
    Strata,
    Values,
    Weights,
    estimate,
    head_weights,
    pearson,
    spearman,
)

SCHEMA = pl.Schema(
    {
        "measure": pl.String,
        "first": pl.String,
        "second": pl.String,
        "pairing": pl.String,
        "pairs": pl.Int64,
        "heads": pl.Int64,
        "spearman": pl.Float64,
        "low": pl.Float64,
        "high": pl.Float64,
        "within_layers": pl.Float64,
        "within_low": pl.Float64,
        "within_high": pl.Float64,
        "pearson": pl.Float64,
        "pearson_low": pl.Float64,
        "pearson_high": pl.Float64,
    }
)


def agreement(values: pl.DataFrame, measure: str, draws: int = DRAWS, seed: int = 0) -> pl.DataFrame:
    """Correlations over heads between groups of tables, as `SCHEMA` has it.

    `values` as `head_values` gives them, and a column `group`: what is compared, such as a task, or a task on
    a corpus. A group with itself is compared over all pairs of its runs (`pairing` is "other runs"). Two
    groups are compared within the same run where runs have both ("same run"), else over all pairs of their
    runs ("all runs"). Each row is a mean over pairs; intervals are of a bootstrap over heads within layers,
    and are about these runs.
    """
    chosen = values.filter(pl.col("measure") == measure)
    groups = list(chosen["group"].unique(maintain_order=True))
    tables: dict[str, dict[str, Values]] = {}
    vectors, strata = tables_of(chosen, ("group", "run"))
    for (group, run), vector in vectors.items():
        tables.setdefault(group, {})[run] = vector
    weights = head_weights(strata, draws, np.random.default_rng(seed))
    rows = []
    for first, second in itertools.combinations_with_replacement(groups, 2):
        pairing, pairs = _pairs(tables[first], tables[second], same=first == second)
        if pairs:
            rows.append((measure, first, second, pairing, len(pairs), *_row(pairs, strata, weights)))
    nan = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    return nan.with_columns(pl.col(pl.Float64).fill_nan(None))


def _pairs(
    first: Mapping[str, Values], second: Mapping[str, Values], *, same: bool
) -> tuple[str, list[tuple[Values, Values]]]:
    if same:
        return "other runs", list(itertools.combinations(first.values(), 2))
    common = [run for run in first if run in second]
    if common:
        return "same run", [(first[run], second[run]) for run in common]
    return "all runs", list(itertools.product(first.values(), second.values()))


def _row(pairs: Sequence[tuple[Values, Values]], strata: Strata, weights: Weights) -> tuple[int | float, ...]:
    once, single = np.ones((1, len(strata))), np.zeros_like(strata)
    ranks: list[Estimate] = []
    known = [~(np.isnan(one) | np.isnan(other)) for one, other in pairs]
    for layers in (single, strata):
        observed, drawn = (
            [
                spearman(one[both], other[both], heads[:, both], layers[both])
                for (one, other), both in zip(pairs, known, strict=True)
            ]
            for heads in (once, weights)
        )
        ranks.append(estimate(float(np.mean(observed)), np.mean(drawn, axis=0)))
    observed, drawn = (
        [
            pearson(one[both], other[both], heads[:, both])
            for (one, other), both in zip(pairs, known, strict=True)
        ]
        for heads in (once, weights)
    )
    linear = estimate(float(np.mean(observed)), np.mean(drawn, axis=0))
    return max(int(both.sum()) for both in known), *ranks[0], *ranks[1], *linear
