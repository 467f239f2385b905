"""The first screen's answer on remedies."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest

from mtl.probes.report.claims import ClaimingSetup, Claims
from mtl.probes.report.data import HISTORY, SCORES, ReportData
from mtl.probes.report.page_part import PageData
from mtl.probes.stem_cell.report.answer_remedy import remedy_answer
from mtl.probes.stem_cell.statistics.remedies import contrasts, helps
from tests.probes.stem_cell.remedy_scores import scores
from tests.probes.stem_cell.test_answers_on_masks import masks


def page(remedies: pl.DataFrame | None) -> PageData:
    data = ReportData(
        name="remedy", encoder="minilm", setups=(), scores=pl.DataFrame(schema=SCORES),
        metrics={"pos": "accuracy", "dep": "las"}, split="test", gates=None, heads=None,
        history=pl.DataFrame(schema=HISTORY), kept=None, runs=pl.DataFrame(), probes=pl.DataFrame(),
        notes=(), evidence={} if remedies is None else {"remedies": remedies},
    )  # fmt: skip
    return PageData(data, {}, Claims(None, None))


def test_the_word_is_that_of_the_contrast_with_the_placebo() -> None:
    table = scores(seeds=6)
    answer = remedy_answer(page(table))
    word, reason = helps(contrasts(table), "C")
    assert answer.word == word == "supported"
    assert answer.reason.startswith(
        f"contested heads copied (C) against placebo: others copied (D): {reason}; "
    )
    assert "pos with C: whether it reaches the single task cannot be told" in answer.reason
    assert "dep with G: differs from the single task by more than half of what sharing costs (1.11)" in (
        answer.reason
    )
    assert len(answer.figures) == 1
    assert set(answer.tables) == {"remedies", "remedy-contrasts", "remedy-scores"}
    swapped = table.with_columns(pl.col("condition").replace({"C": "D", "D": "C"}))
    assert remedy_answer(page(swapped)).word == "refuted"


def test_a_remedy_by_claims_that_a_target_forced_counts_them() -> None:
    """What is copied are the heads that tasks claim."""
    given = page(scores(seeds=6))
    of_masks = dataclasses.replace(
        given, claims=Claims(ClaimingSetup("STL, dynamic", ""), masks(4, learned=5))
    )
    words = "claimed heads are pos 12 (5 learned), dep 12 (5 learned); "
    assert remedy_answer(of_masks).reason == f"{words}{remedy_answer(given).reason}"
    learned = dataclasses.replace(of_masks, claims=Claims(of_masks.claims.by, masks(4)))
    assert remedy_answer(learned).reason == remedy_answer(given).reason


@pytest.mark.parametrize(
    ("remedies", "reason"),
    [
        (None, "no runs with a remedy"),
        (scores(seeds=2), "fewer than 3 seeds"),
        (scores(seeds=6).filter(pl.col("condition") != "D"), "no remedy with its placebo"),
    ],
)
def test_what_is_missing_is_said(remedies: pl.DataFrame | None, reason: str) -> None:
    answer = remedy_answer(page(remedies))
    assert answer.word == "cannot tell"
    assert reason in answer.reason
