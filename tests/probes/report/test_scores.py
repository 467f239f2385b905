"""The report's table of scores: what stands beside a baseline, and what is averaged."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest

from mtl.probes.report.data import HISTORY, SCORES, ReportData, Setup
from mtl.probes.report.page_part import joint_costs, printed_scores, score_rows
from mtl.probes.report.report import across, label_skills
from mtl.probes.sites import Site
from mtl.probes.statistics.masks import Masks
from tests.probes import worlds

ALONE = Setup("STL", None, single=True, trained=("pos", "dep"))
JOINT = Setup("MTL-2", "STL", single=False, tasks=2, trained=("pos", "dep"))


def evidence(*setups: Setup, tasks: tuple[str, ...] = ("pos", "dep"), **more: object) -> ReportData:
    rows = [
        (setup.name, task, seed, f"{setup.name} {task} {seed}", 90.0 + place + seed)
        for place, setup in enumerate(setups)
        for task in tasks
        for seed in (1, 2)
    ]
    none = pl.DataFrame()
    return ReportData(
        "a", "minilm", setups, pl.DataFrame(rows, SCORES, orient="row"), dict.fromkeys(tasks, "f1"), "test",
        None, None, pl.DataFrame(schema=HISTORY), None, none, none, (), **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("unlike", "cell"), [((), "**92.50 ± 0.71 (+1.00)**"), (("lr",), "**92.50 ± 0.71**")]
)
def test_a_difference_to_runs_that_were_trained_otherwise_is_not_printed(unlike, cell) -> None:
    """The page names the keys beside it; a paper's table has no room for them."""
    tasks, rows = score_rows(evidence(ALONE, dataclasses.replace(JOINT, unlike=unlike)))
    assert rows[1].cells[0].difference == pytest.approx(1.0)
    assert printed_scores(tasks, rows)["pos"].to_list()[1] == cell


def test_tasks_that_are_there_for_comparison_are_in_no_mean() -> None:
    """Whatever they are called, labels drawn at random say nothing on how well tasks are done."""
    tasks = ("pos", "dep", "noise")
    made = evidence(ALONE, JOINT, tasks=tasks, only_compared=frozenset({"noise"}))
    drawn = (pl.col("task") == "noise") & (pl.col("setup") == "STL")
    lower = made.scores.with_columns(pl.when(drawn).then(1.0).otherwise("score").alias("score"))
    without = lower.filter(~((pl.col("task") == "noise") & (pl.col("setup") == "MTL-2")))
    _, rows = score_rows(dataclasses.replace(made, scores=without))
    assert [row.mean for row in rows] == [pytest.approx(91.5), pytest.approx(92.5)]
    _, rows = score_rows(dataclasses.replace(made, scores=without.filter(pl.col("task") != "dep")))
    assert [row.mean for row in rows] == [pytest.approx(91.5), pytest.approx(92.5)]


def test_a_cost_has_the_differences_of_its_seeds() -> None:
    made = evidence(ALONE, JOINT)
    lost = {("pos", 1): -2.0, ("pos", 2): -3.0, ("dep", 1): -2.0, ("dep", 2): 1.0}
    changed = [
        score + lost[task, seed] - 1.0 if setup == "MTL-2" else score
        for setup, task, seed, score in made.scores.select("setup", "task", "seed", "score").iter_rows()
    ]
    scored = made.scores.with_columns(score=pl.Series(changed))
    setup, costs = joint_costs(*score_rows(dataclasses.replace(made, scores=scored)))
    found = [(each.task, each.difference, each.lowest, each.highest) for each in costs]
    assert setup == "MTL-2"
    assert found == [("pos", -2.5, -3.0, -2.0), ("dep", -0.5, -2.0, 1.0)]
    alone = scored.filter(~((pl.col("setup") == "STL") & (pl.col("seed") == 2)))
    _, costs = joint_costs(*score_rows(dataclasses.replace(made, scores=alone)))
    assert [(each.difference, each.seeds) for each in costs] == [(-2.0, 1)] * 2


def test_probes_without_chance_levels_are_a_note() -> None:
    probed = worlds.heads(np.full((1, 1, 2, 3, 4), 0.5), "STL")
    made = dataclasses.replace(evidence(ALONE), heads=probed.filter(pl.col("measure") == "attention"))
    notes: list[str] = []
    assert label_skills(made, notes) == (None, None)
    assert [note.partition(" for ")[0] for note in notes] == ["no chance level"]


def test_claims_of_different_setups_are_compared_if_there_are_two() -> None:
    opened = np.random.default_rng(0).random((2, 1, 3, 4)) > 0.5
    sites = tuple(Site("self", layer) for layer in range(3))
    masks = Masks(("pos", "dep"), (1,), sites, opened.astype(float), opened, opened)
    assert across({"STL": masks}) == (None, "")
    table, note = across({"STL": masks, "MTL-2": masks})
    assert table is not None
    assert ("STL: pos", "MTL-2: dep") in table.select("first", "second").rows()
    assert note == ""
