"""How far masks agree, over seeds of one task and between tasks, and whether that is more than chance."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import polars as pl
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from mtl.probes.statistics.corrections import benjamini_hochberg
from mtl.probes.statistics.masks import Masks
from mtl.probes.statistics.overlap_chance import chance_of_overlap

LEVEL = 0.05
"""The level of a finding, for both sides together."""


def standardised(gates: Float[np.ndarray, "*many site head"]) -> Float[np.ndarray, "*many cell"]:
    """Masks as vectors of mean 0 and length 1, whose inner products are Pearson's r; NaN where constant."""
    flat = gates.reshape(*gates.shape[:-2], -1)
    centred = flat - flat.mean(-1, keepdims=True)
    length = np.linalg.norm(centred, axis=-1, keepdims=True)
    # What is left of a constant after subtracting its mean is rounding.
    constant = length <= 1e-12 * np.maximum(1, np.abs(flat).max(-1, keepdims=True))
    return np.divide(centred, length, out=np.full_like(centred, np.nan), where=~constant)


def predicted_agreement(gates: Float[np.ndarray, "seed site head"]) -> float:
    """He & Choi's diagonal: the square root of the adjusted R^2 of the third run regressed on the first two.

    0 if the adjusted R^2 is negative; NaN for fewer than three runs, for a constant third run, and for no
    more heads than the regression has coefficients.
    """
    if len(gates) < 3:
        return float("nan")
    one, two, three = gates[:3].reshape(3, -1).astype(np.float64)
    spread = float(((three - three.mean()) ** 2).sum())
    if spread <= 1e-12:
        return float("nan")
    predictors = np.stack([np.ones_like(one), one, two], axis=1)
    coefficients, _, rank, _ = np.linalg.lstsq(predictors, three)
    unexplained = float(((three - predictors @ coefficients) ** 2).sum()) / spread
    cells = len(three)
    if cells <= rank:
        return float("nan")
    return float(np.sqrt(max(0.0, 1 - unexplained * (cells - 1) / (cells - int(rank)))))


def correlation_table(masks: Masks) -> pl.DataFrame:
    """He & Choi's table of correlations, and mean correlations over pairs of runs, for all pairs of tasks.

    Columns: first, second, `paper` (for two tasks, the correlation of their mean gates; for a task with
    itself, `predicted_agreement`), `pairwise` (the mean correlation of a run of the one with a run of the
    other, never of a run with itself). Null: not defined. There is no interval: resampling seeds gives one
    that is too narrow (of three seeds, one called 95 % covers 65 to 73 %; of ten, 88 %).
    """
    vectors, means = standardised(masks.gate), standardised(masks.mean())
    rows = []
    for a, b in itertools.combinations_with_replacement(range(len(masks.tasks)), 2):
        between = vectors[a] @ vectors[b].T
        pairs = ~np.eye(len(masks.seeds), dtype=bool) if a == b else np.ones_like(between, dtype=bool)
        rows.append(
            {
                "first": masks.tasks[a],
                "second": masks.tasks[b],
                "paper": predicted_agreement(masks.gate[a]) if a == b else float(means[a] @ means[b]),
                "pairwise": float(between[pairs].mean()) if pairs.any() else np.nan,
            }
        )
    schema = {"first": pl.String, "second": pl.String} | dict.fromkeys(("paper", "pairwise"), pl.Float64)
    return pl.DataFrame(rows, schema=schema).fill_nan(None)


def jaccard(
    first: Bool[np.ndarray, "*many site head"], second: Bool[np.ndarray, "*many site head"]
) -> Float[np.ndarray, "*many"]:
    """Common open heads per head that is open in either; NaN if none is."""
    return _ratio((first & second).sum((-2, -1)), (first | second).sum((-2, -1)))


def overlap_coefficient(
    first: Bool[np.ndarray, "*many site head"], second: Bool[np.ndarray, "*many site head"]
) -> Float[np.ndarray, "*many"]:
    """Common open heads per open head of the smaller mask; NaN if that has none."""
    return _ratio((first & second).sum((-2, -1)), np.minimum(first.sum((-2, -1)), second.sum((-2, -1))))


def _ratio(part: ArrayLike, total: ArrayLike) -> np.ndarray:
    """The ratio as an array, also for single numbers; NaN if the total is 0."""
    parts, totals = np.asarray(part, dtype=np.float64), np.asarray(total, dtype=np.float64)
    return np.divide(parts, totals, out=np.full_like(parts, np.nan), where=totals > 0)


def overlap_table(names: Sequence[str], opened: Bool[np.ndarray, "mask site head"]) -> pl.DataFrame:
    """The overlap of all pairs of masks, beside chance.

    `common`: heads open in both; `expected` and `expected_layers`: their mean by chance. `p_more` and
    `p_fewer`: the chance of at least and of at most as many if all open heads are drawn at random
    (hypergeometric); `p_more_layers` and `p_fewer_layers`: if every layer keeps its number of open heads. All
    p are exact and one-sided. `q_...`: the same after Benjamini and Hochberg over all pairs.
    """
    rows = []
    for a, b in itertools.combinations(range(len(names)), 2):
        expected, more, fewer = chance_of_overlap(opened[a], opened[b], keep_layers=False)
        expected_layers, more_layers, fewer_layers = chance_of_overlap(opened[a], opened[b], keep_layers=True)
        rows.append(
            {
                "first": names[a],
                "second": names[b],
                "open_first": int(opened[a].sum()),
                "open_second": int(opened[b].sum()),
                "common": int((opened[a] & opened[b]).sum()),
                "expected": expected,
                "expected_layers": expected_layers,
                "jaccard": float(jaccard(opened[a], opened[b])),
                "overlap": float(overlap_coefficient(opened[a], opened[b])),
                "p_more": more,
                "p_fewer": fewer,
                "p_more_layers": more_layers,
                "p_fewer_layers": fewer_layers,
            }
        )
    texts, counts = ("first", "second"), ("open_first", "open_second", "common")
    chances = ("p_more", "p_fewer", "p_more_layers", "p_fewer_layers")
    measures = ("expected", "expected_layers", "jaccard", "overlap", *chances)
    schema = (
        dict.fromkeys(texts, pl.String)
        | dict.fromkeys(counts, pl.Int64)
        | dict.fromkeys(measures, pl.Float64)
    )
    table = pl.DataFrame(rows, schema=schema)
    adjusted = [
        pl.Series("q" + name[1:], benjamini_hochberg(table[name].to_numpy()), dtype=pl.Float64)
        for name in chances
    ]
    return table.with_columns(adjusted).fill_nan(None)


def reading(more: float | None, fewer: float | None) -> str:
    """The finding, given the corrected one-sided p of more and of fewer common heads."""
    if more is not None and more <= LEVEL / 2:
        return "more than chance"
    if fewer is not None and fewer <= LEVEL / 2:
        return "fewer than chance"
    return "as by chance"


def claim_overlaps(
    names: Sequence[str],
    claimed: Bool[np.ndarray, "mask site head"],
    learned: Bool[np.ndarray, "mask site head"],
) -> pl.DataFrame:
    """`overlap_table` of claimed heads, with the same of learned heads alone beside it, and the finding.

    Columns `learned_...` are those of `overlap_table(names, learned)`, so that every p is that of the masks
    whose common heads it stands beside. `finding` is about learned heads, with each layer keeping its number
    of them: heads that a target forced open say nothing about what a task wants.
    """
    alone = overlap_table(names, learned)
    finding = [reading(*chances) for chances in alone.select("q_more_layers", "q_fewer_layers").iter_rows()]
    beside = alone.select(pl.col(name).alias(f"learned_{short}") for name, short in _OF_LEARNED.items())
    table = overlap_table(names, claimed).with_columns(beside.get_columns())
    return table.with_columns(finding=pl.Series(finding, dtype=pl.String))


_OF_LEARNED = {"open_first": "first", "open_second": "second"} | {
    name: name for name in ("common", "expected_layers", "jaccard", "q_more_layers", "q_fewer_layers")
}


def task_overlaps(masks: Masks) -> pl.DataFrame:
    """`claim_overlaps` of the heads that each task claims (open in more than half of its seeds).

    There are no intervals over seeds: resampling few seeds does not show how a majority of them varies.
    """
    return claim_overlaps(masks.tasks, masks.claimed(), masks.learned_claims())
