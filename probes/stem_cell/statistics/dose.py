"""Does sharing heads cost anything? Scores of pairs under masks whose overlap was assigned by chance."""

from __future__ import annotations

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from mtl.probes.statistics.resampling import accepted_interval, permutations_within
from mtl.probes.stem_cell.statistics.equivalence import MARGIN
from mtl.probes.stem_cell.statistics.sharing import SCORED
from mtl.probes.stem_cell.statistics.wanted import CANNOT_TELL, NO, YES, Word
from mtl.tasks.in_words import counted

SCHEMA = pl.Schema(
    {"pair": pl.String, "task": pl.String, "runs": pl.Int64}
    | dict.fromkeys(("loss", "low", "high", "p"), pl.Float64)
)
ALL = "all"
DRAWS = 4999


def dose(scores: pl.DataFrame, level: float = 0.05, draws: int = DRAWS, seed: int = 0) -> pl.DataFrame:
    """The points of a score that are lost if all heads are in common instead of none.

    There is a row per task of each pair, and one over all pairs and tasks (`all`, `all`). `scores`: pair,
    overlap (heads in common), heads (of the task's mask), run, task, score. The score is regressed on the
    share of heads in common, both less their mean over the pair's runs; for the row over all, a run's scores
    are averaged over its tasks. p follows from the design: overlaps were assigned to the runs of a pair by
    chance, so they are permuted among these runs, one-sided (more in common, lower score). The interval
    inverts this test; its error on both sides together is `level`. Columns: pair, task, runs, loss (points),
    low, high, p; null if all overlaps of a pair are the same. An interval is infinite if there are too few
    different orders.
    """
    shares = scores.with_columns(share=pl.col("overlap") / pl.col("heads"))
    rows = []
    for (pair, task), of_task in shares.group_by("pair", "task", maintain_order=True):
        rows.append((str(pair), str(task), *_fit(of_task, level, draws, seed)))
    runs = shares.group_by("pair", "run", maintain_order=True).agg(pl.col("share", "score").mean())
    rows.append((ALL, ALL, *_fit(runs, level, draws, seed)))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").fill_nan(None)


def word_on(losses: pl.DataFrame, cost: float | None, level: float = 0.05) -> tuple[Word, str]:
    """The word on the row over all pairs, and its reason.

    `cost`: the points that the tasks of these pairs lose on average if a pair shares all heads without masks;
    `None` if not known. *Yes* if a loss is certain, *no* if a loss of half of the cost is excluded: a margin
    above what there is to lose would exclude nothing.
    """
    row = losses.row(by_predicate=(pl.col("pair") == ALL) & (pl.col("task") == ALL), named=True)
    if row["loss"] is None:
        return CANNOT_TELL, "the masks of each pair have the same number of heads in common in all runs"
    reason = (
        f"under masks with all heads in common, tasks score {SCORED.of(row['loss'])} than under masks with "
        f"none ({1 - level:.0%} interval {SCORED.interval(row['low'], row['high'])}, one-sided p "
        f"{row['p']:.3f}, {counted(row['runs'], 'run')})"
    )
    if row["low"] > 0:
        return YES, reason
    if cost is None:
        return CANNOT_TELL, f"{reason}; what these pairs lose without masks is not known here"
    reason += f"; without masks these pairs score {SCORED.of(cost)} than alone"
    return (NO if row["high"] < MARGIN * cost else CANNOT_TELL), reason


def _fit(runs: pl.DataFrame, level: float, draws: int, seed: int) -> tuple[int, float, float, float, float]:
    pairs = runs["pair"].rank("dense").cast(pl.Int64).to_numpy()
    share, score = (_centred(runs[name].to_numpy().astype(np.float64), pairs) for name in ("share", "score"))
    square = float(share @ share)
    if square <= 1e-12:
        return len(runs), float("nan"), float("nan"), float("nan"), float("nan")
    orders = permutations_within(pairs, draws, np.random.default_rng(seed))
    observed = float(share @ score)
    permuted, crossed = share[orders] @ score, share[orders] @ share
    p = float((1 + (permuted <= observed + 1e-9).sum()) / (1 + draws))
    # As in `contest`: with score + loss * share, each order changes sides at one loss.
    low, high = accepted_interval(permuted - observed, square - crossed, square, level)
    return len(runs), -observed / square, low, high, p


def _centred(values: Float[np.ndarray, " run"], pairs: Int[np.ndarray, " run"]) -> Float[np.ndarray, " run"]:
    """Values less the mean of their pair."""
    _, place = np.unique(pairs, return_inverse=True)
    return values - (np.bincount(place, values) / np.bincount(place))[place]
