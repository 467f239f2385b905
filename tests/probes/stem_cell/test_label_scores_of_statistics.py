"""The laboratory's statistics use the one definition of what a head scores on a label."""

from __future__ import annotations

import polars as pl
import pytest

from mtl.probes.statistics.head_values import skills
from mtl.probes.stem_cell.competition import losses, task_losses
from mtl.probes.stem_cell.contest_table import uncut_skill
from tests.probes.tables.test_label_scores import GOOD, HEADS, best, planted


def by_competition() -> int:
    wanted = pl.DataFrame(
        {"attention": ["self"] * 4, "layer": [0] * 4, "head": [0, 1, 2, 3]},
        schema_overrides={"layer": pl.Int32, "head": pl.Int32},
    )
    return best(losses(wanted, skills(HEADS)), "stl")


def by_uncut_skill() -> int:
    pairs = pl.DataFrame({"run": ["pair-1"], "task": ["dep"], "of": ["dep"], "partner": ["pos"]})
    return best(uncut_skill(pl.concat([planted("stl"), planted("pair")]), pairs), "worth")


@pytest.mark.parametrize("user", [by_competition, by_uncut_skill])
def test_the_best_head_is_best_by_a_label_that_counts(user) -> None:
    assert user() == GOOD


def test_only_labels_that_count_are_in_losses_of_tasks() -> None:
    [row] = task_losses(HEADS).iter_rows(named=True)
    assert (row["labels"], row["loss"]) == (2, 0)
