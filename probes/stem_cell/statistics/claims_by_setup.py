"""Claims and losses by the masks of every setup: one test each, corrected for their number."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from mtl.probes.statistics.corrections import holm
from mtl.probes.statistics.masks import Masks
from mtl.probes.statistics.skill import skills
from mtl.probes.stem_cell.statistics.competition import (
    DIFFERENCE,
    PRIMARY,
    TOO_FEW,
    claims,
    head_tests,
    losses,
    verdict,
)

SCHEMA = pl.Schema(
    {
        "claims": pl.String, "tasks": pl.Int64, "seeds": pl.Int64, "contested": pl.Int64,
        "value": pl.Float64, "p": pl.Float64, "p_holm": pl.Float64, "difference": pl.Float64,
        "learned": pl.Float64, "lacking": pl.String,
    }
)  # fmt: skip


def by_claims(
    sets: Mapping[str, Masks], heads: pl.DataFrame, level: float = 0.05, draws: int = 2000, seed: int = 0
) -> pl.DataFrame:
    """The one test of `compete` by the claims of each of several setups, in their order.

    `value` is Spearman's correlation of claims and loss within layers, `p` is one-sided. `p_holm` is p after
    Holm over all setups that have one: at most the chance that any of them is as small if claims and losses
    have nothing to do with each other in any setup. `difference` is the loss of contested heads less that of
    others within layers, as a share. `learned` is `value` by the claims that no target forced; null if none
    is forced. `lacking` says why these claims give no verdict. Raises `ValueError` as `compete` does.
    """
    skill = skills(heads)
    rows = []
    for name, masks in sets.items():
        table = losses(claims(masks), skill)
        tests = head_tests(table, 1 - level, draws, np.random.default_rng(seed))
        test = tests.row(by_predicate=pl.col("test") == PRIMARY, named=True)
        apart = tests.row(by_predicate=pl.col("test") == DIFFERENCE, named=True)
        result = verdict(masks, heads, table, tests, level)
        rows.append(
            {
                "claims": name, "tasks": len(masks.tasks), "seeds": len(masks.seeds),
                "contested": int(table["contested"].sum()), "value": test["value"], "p": test["p"],
                "difference": apart["value"], "learned": _of_learned(masks, skill, level, draws, seed),
                "lacking": result.reason if result.word == TOO_FEW else "",
            }
        )  # fmt: skip
    return _corrected(
        pl.DataFrame(rows, schema={key: kind for key, kind in SCHEMA.items() if key != "p_holm"})
    )


def _of_learned(masks: Masks, skill: pl.DataFrame, level: float, draws: int, seed: int) -> float | None:
    """Spearman's correlation by learned claims alone; `None` if no head was forced."""
    if not masks.forced().any():
        return None
    table = losses(claims(masks.learned_alone()), skill)
    tests = head_tests(table, 1 - level, draws, np.random.default_rng(seed))
    value = tests.row(by_predicate=pl.col("test") == PRIMARY, named=True)["value"]
    return None if value is None else float(value)


def _corrected(table: pl.DataFrame) -> pl.DataFrame:
    """The table with `p_holm`; rows without a p do not count as tests."""
    tested = table["p"].is_not_null().to_numpy()
    corrected = np.full(table.height, np.nan)
    corrected[tested] = holm(table["p"].drop_nulls().to_numpy())
    return table.with_columns(p_holm=pl.Series(corrected, dtype=pl.Float64).fill_nan(None)).select(*SCHEMA)
