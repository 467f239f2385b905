"""How well cheap measures on heads predict what ablation costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from mtl.probes.statistics.head_values import ABLATION, PREDICTORS, tables_of
from mtl.probes.statistics.rank_correlation import (
    DRAWS,
    Estimate,
    Strata,
    Values,
    Weights,
    centred_ranks,
    correlation,
    estimate,
    head_weights,
)

TOP = 0.1
"""The share of heads, those that are costliest to close, that a measure should find."""
RankedLosses = dict[tuple[bytes, bytes, bytes], np.ndarray]
"""Centred ranks of losses, [draw head], by losses, known heads (whose number differs) and strata."""
SCHEMA = pl.Schema(
    dict.fromkeys(("task", "setup", "measure"), pl.String)
    | dict.fromkeys(("runs", "heads"), pl.Int64)
    | dict.fromkeys(("spearman", "low", "high", "within_layers", "within_low", "within_high"), pl.Float64)
    | dict.fromkeys(("overlap", "overlap_chance"), pl.Float64)
)


def prediction(values: pl.DataFrame, draws: int = DRAWS, seed: int = 0) -> pl.DataFrame:
    """Spearman's correlation of each measure with the loss by ablation, per task and setup (`SCHEMA`).

    `values` are those of `head_values`. The correlation is taken over the heads of each run, and then
    averaged over the runs of the setup: once over all heads, and once with ranks within layers, so that
    differences between layers do not count. A run without variation does not count; null if no run has a
    correlation. Intervals are by a bootstrap over heads (within layers, the same heads in all runs, which
    start from one encoder) and over runs at once (Owen 2007). `overlap` is the share of the k most costly
    heads that are among the measure's k highest, where k is a tenth of the heads, and `overlap_chance` is
    what chance gives. If heads are tied for the last of the k places, each counts with its share of these.
    """
    vectors, strata = tables_of(values, ("measure", "task", "setup", "run"))
    rng = np.random.default_rng(seed)
    weights = head_weights(strata, draws, rng)
    order = {name: place for place, name in enumerate(PREDICTORS)}
    cells = (
        values.filter(pl.col("measure").is_in(list(PREDICTORS)))
        .select("task", "setup", "measure", "run")
        .unique(maintain_order=True)
        .group_by("task", "setup", "measure", maintain_order=True)
        .agg("run")
        .sort(
            *(_place(values, name) for name in ("task", "setup")),
            pl.col("measure").replace_strict(order, return_dtype=pl.Int64),
        )
    )
    rows = []
    ranked: RankedLosses = {}
    for task, setup, measure, runs in cells.iter_rows():
        ablated = [run for run in runs if (ABLATION, task, setup, run) in vectors]
        measures = [vectors[measure, task, setup, run] for run in ablated]
        # Scores that are equal in exact arithmetic may differ in the last digits.
        losses = [vectors[ABLATION, task, setup, run].round(9) for run in ablated]
        heads = [int(_known(*pair).sum()) for pair in zip(measures, losses, strict=True)]
        if max(heads, default=0) < 2:
            continue
        pooled, within = over_runs(measures, losses, strata, weights, rng, ranked)
        shares, chances = zip(*map(top_overlap, measures, losses), strict=True)
        overlap = float(np.mean(shares)), float(np.mean(chances))
        rows.append((task, setup, measure, len(ablated), max(heads), *pooled, *within, *overlap))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").fill_nan(None)


def _place(values: pl.DataFrame, column: str) -> pl.Expr:
    """The places of a column's values in the order in which they first appear."""
    names = values[column].unique(maintain_order=True)
    return pl.col(column).replace_strict(names, list(range(len(names))), return_dtype=pl.Int64)


def over_runs(
    measures: Sequence[Values],
    losses: Sequence[Values],
    strata: Strata,
    weights: Weights,
    rng: np.random.Generator,
    ranked: RankedLosses | None = None,
) -> tuple[Estimate, Estimate]:
    """The mean over runs of Spearman's correlation over heads: of all heads, and within strata.

    A draw has each head as often as its row of `weights` says, in all runs, and runs drawn with replacement.
    Heads that are NaN in either vector of a run are left out of that run. `ranked` keeps the ranks of losses
    for the next call: all measures of a setup are compared with the same losses.
    """
    chosen = rng.integers(0, len(measures), size=(len(measures), len(weights)))
    by_head = np.concatenate([np.ones((len(strata), 1)), weights.T], axis=1)  # first the heads as they are
    in_half = by_head.astype(np.float32)  # counts are exact in it
    kept: RankedLosses = {} if ranked is None else ranked
    used: RankedLosses = {}
    estimates = []
    ranks = np.empty_like(by_head)
    for layers in (np.zeros_like(strata), strata):
        drawn = []
        for measure, loss in zip(measures, losses, strict=True):
            known = _known(measure, loss)
            counts, halves = ((of if known.all() else of[known]).T for of in (by_head, in_half))
            key = loss[known].tobytes(), known.tobytes(), layers.tobytes()
            found = used.get(key, kept.get(key))
            used[key] = centred_ranks(loss[known], halves, layers[known]) if found is None else found
            of_measure = centred_ranks(measure[known], halves, layers[known], ranks[: known.sum()])
            drawn.append(correlation(of_measure, used[key], counts))
        of_runs = np.array(drawn)
        resampled = np.take_along_axis(of_runs[:, 1:], chosen, axis=0)
        estimates.append(estimate(float(_mean(of_runs[:, :1])[0]), _mean(resampled)))
    if ranked is not None:
        ranked.clear()
        ranked |= used
    return estimates[0], estimates[1]


def _known(measure: Values, loss: Values) -> Bool[np.ndarray, " head"]:
    return ~(np.isnan(measure) | np.isnan(loss))


def _mean(values: Float[np.ndarray, "run draw"]) -> Float[np.ndarray, " draw"]:
    """The mean over runs that have a value."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0).sum(0) / known.sum(0)


def top_overlap(measure: Values, loss: Values) -> tuple[float, float]:
    """The share of the k most costly heads among the measure's k highest, and this share by chance."""
    known = _known(measure, loss)
    measure, loss = measure[known], loss[known]
    if not len(loss):
        return float("nan"), float("nan")
    k = max(1, round(TOP * len(loss)))
    return float(_top(measure, k) @ _top(loss, k) / k), k / len(loss)


def _top(values: Values, k: int) -> Float[np.ndarray, " head"]:
    """1 for each of the k highest, 0 for the others; heads tied for the last places share them."""
    last = np.sort(values)[-k]
    above, tied = values > last, values == last
    return above + tied * (k - above.sum()) / tied.sum()
