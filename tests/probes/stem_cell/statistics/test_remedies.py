"""Remedies in a table: what is paired with what, and what is left empty."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mtl.probes.statistics.spread_of_runs import difference
from mtl.probes.stem_cell.statistics.equivalence import contrast, equivalence, recovery
from mtl.probes.stem_cell.statistics.remedies import against_placebo, contrasts, recoveries
from tests.probes.stem_cell.remedy_scores import MEANS, scores


def values(table: pl.DataFrame, condition: str, task: str) -> np.ndarray:
    return table.filter(condition=condition, task=task).sort("seed")["score"].to_numpy()


def test_every_figure_is_that_of_its_own_function() -> None:
    table = scores(seeds=6)
    found = recoveries(table)
    assert found.height == 2 * len(MEANS)
    for row in found.iter_rows(named=True):
        own, task = values(table, row["condition"], row["task"]), row["task"]
        assert row["score"] == pytest.approx(own.mean())
        assert row["seeds"] == 6
        if row["condition"] == "single":
            assert row["difference"] is row["recovery"] is None
            continue
        reached = equivalence(own, values(table, "single", task))
        assert (row["difference"], row["p"], row["word"]) == (reached.difference, reached.p, reached.word)
        assert row["margin"] == 1.0
        if row["condition"] != "A":
            share = recovery(own, values(table, "A", task), values(table, "single", task))
            assert (row["recovery"], row["recovery_low"]) == (share.share, share.low)
    mean = {name: (values(table, name, "pos") + values(table, name, "dep")) / 2 for name in MEANS}
    result = against_placebo(table)
    assert result == contrast(mean["C"], mean["D"], float((mean["single"] - mean["A"]).mean()))
    assert result.word == "supported"
    first = contrasts(table).row(0, named=True)
    assert (first["remedy"], first["placebo"], first["seeds"]) == ("C", "D", 6)
    ends = (first["difference"], first["difference_low"], first["difference_high"], first["p"], first["word"])
    assert ends == (result.difference, result.low, result.high, result.p, result.word)
    beside = difference(mean, {"C": 1.0, "D": -1.0}, 0.9)
    assert (first["unpaired_low"], first["unpaired_high"]) == pytest.approx((beside.low, beside.high))
    assert first["unpaired_p"] == pytest.approx(beside.p / 2 if beside.value > 0 else 1 - beside.p / 2)


def test_masks_with_limited_overlap_are_held_against_masks_without() -> None:
    table = scores(seeds=3)
    copies = contrasts(table).row(0, named=True)
    penalised = table.filter(condition="C").with_columns(condition=pl.lit("O"))
    allotted = table.with_columns(pl.col("condition").replace({"C": "H", "D": "H'"}))
    for row in contrasts(pl.concat([allotted, penalised])).iter_rows(named=True):
        assert row == copies | {"remedy": row["remedy"], "placebo": "H'"}
    assert set(contrasts(pl.concat([allotted, penalised]))["remedy"]) == {"H", "O"}


def test_too_few_seeds_give_figures_and_no_word() -> None:
    found = recoveries(scores(seeds=3))
    assert set(found["word"]) == {""}
    assert found.filter(condition="C")["difference_low"].is_not_null().all()
    assert found.filter(condition="C")["p"].is_null().all()
    assert against_placebo(scores(seeds=3)) is not None
    assert against_placebo(scores(seeds=2)) is None
    assert contrasts(scores(seeds=2)).is_empty()
    alone = recoveries(scores(seeds=1))
    assert alone.filter(condition="C")["difference"].is_not_null().all()
    assert alone.filter(condition="C")["recovery"].is_null().all()


def test_only_seeds_that_both_have_are_paired() -> None:
    table = scores(seeds=6)
    fewer = table.filter(~((pl.col("condition") == "D") & (pl.col("seed") > 4) & (pl.col("task") == "dep")))
    result = against_placebo(fewer)
    assert result is not None
    assert result.runs == 4
    without = table.filter(pl.col("condition") != "A")
    assert recoveries(without)["recovery"].is_null().all()


def test_nothing_lost_gives_no_recovery() -> None:
    table = scores(seeds=6).filter(pl.col("condition") != "A")
    single = table.filter(condition="single").with_columns(
        condition=pl.lit("A"), score=pl.col("score") + 0.3 - 0.6 * (pl.col("seed") % 2)
    )
    found = recoveries(pl.concat([table, single]))
    assert found.filter(condition="C")["recovery"].is_null().all()
