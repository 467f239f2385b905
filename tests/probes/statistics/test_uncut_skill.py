"""Skill that is not cut at chance: which labels count, and by how much."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from probes.statistics.uncut_skill import uncut_skill
from tests.probes import worlds


def test_labels_are_chosen_on_single_tasks_and_falls_below_chance_count():
    # Seed, task, label, layer, head: two labels of 10 and 20 items, three heads; chance is 0.3.
    alone = np.array([[0.5, 0.2, 0.1], [0.6, 0.4, 0.2]]).reshape(1, 1, 2, 1, 3)
    beside = np.array([[0.2, 0.9, 0.9], [0.5, 0.1, 0.9]]).reshape(1, 1, 2, 1, 3)
    heads = pl.concat(
        [worlds.heads(alone, "stl", ("dep",), (1,)), worlds.heads(beside, "pair", ("dep",), (1,))]
    )
    pairs = pl.DataFrame({"run": ["pair-1"], "task": ["dep"], "of": ["dep"], "partner": ["pos"]})
    table = uncut_skill(heads, pairs).sort("head")
    assert table.columns == ["task", "partner", "seed", "attention", "layer", "head", "worth"]
    # The first head beats chance on both labels, the second on label 1 alone, the third on none.
    expected = [(10 * (0.2 - 0.3) + 20 * (0.5 - 0.3)) / 30, 0.1 - 0.3, 0.0]
    assert table["worth"].to_list() == pytest.approx(expected)
    assert uncut_skill(heads.filter(pl.col("regime") == "pair"), pairs).is_empty()
    assert uncut_skill(heads, pairs.clear()).is_empty()
