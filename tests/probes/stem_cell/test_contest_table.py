"""Skill that is not cut at chance: which labels count, and by how much."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mtl.probes.stem_cell.contest_table import uncut_skill
from tests.probes import worlds


def test_labels_are_chosen_on_single_tasks_and_falls_below_chance_count():
    # Seed, task, label, layer, head: two labels of 30 and 60 items, three heads; chance is 0.3.
    alone = np.array([[0.5, 0.2, 0.1], [0.6, 0.4, 0.2]]).reshape(1, 1, 2, 1, 3)
    beside = np.array([[0.2, 0.9, 0.9], [0.5, 0.1, 0.9]]).reshape(1, 1, 2, 1, 3)
    heads = pl.concat(
        [worlds.heads(alone, "stl", ("dep",), (1,)), worlds.heads(beside, "pair", ("dep",), (1,))]
    )
    pairs = pl.DataFrame({"run": ["pair-1"], "task": ["dep"], "of": ["dep"], "partner": ["pos"]})
    table = uncut_skill(heads, pairs).sort("head")
    assert table.columns == ["task", "partner", "seed", "attention", "layer", "head", "worth"]
    # The first head beats chance on both labels, the second on label 1 alone, the third on none.
    expected = [(30 * (0.2 - 0.3) + 60 * (0.5 - 0.3)) / 90, 0.1 - 0.3, 0.0]
    assert table["worth"].to_list() == pytest.approx(expected)
    assert uncut_skill(heads.filter(pl.col("regime") == "pair"), pairs).is_empty()
    assert uncut_skill(heads, pairs.clear()).is_empty()


def clustering(value: np.ndarray, projection: np.ndarray, regime: str) -> pl.DataFrame:
    """Rows of clustering (layer, head) of one label, and of the projections of each layer."""
    rows = worlds.heads(value[None, None, None], regime, ("pos",), (1,)).filter(measure="attention")
    of_layer = rows.filter(pl.col("head") == 0).with_columns(
        measure=pl.lit("clustering_projection"),
        head=pl.lit(None, dtype=pl.Int64),
        value=pl.col("layer").replace_strict(dict(enumerate(projection)), return_dtype=pl.Float64),
    )
    return pl.concat([rows.with_columns(measure=pl.lit("clustering")), of_layer])


def test_clustering_is_compared_with_random_projections_of_the_same_layer_and_run():
    pairs = pl.DataFrame({"run": ["pair-1"], "task": ["pos"], "of": ["pos"], "partner": ["dep"]})
    alone = clustering(np.array([[0.5, 0.3], [0.7, 0.9]]), np.array([0.4, 0.6]), "stl")
    beside = clustering(np.array([[0.4, 0.8], [0.6, 0.7]]), np.array([0.3, 0.8]), "pair")
    table = uncut_skill(pl.concat([alone, beside]), pairs, "clustering").sort("layer", "head")
    # The second head of the first layer is below its projection in single-task runs, and counts, too.
    assert table["worth"].to_list() == pytest.approx([0.4 - 0.3, 0.8 - 0.3, 0.6 - 0.8, 0.7 - 0.8])
    old = beside.filter(measure="clustering")
    with pytest.raises(ValueError, match=r"1 run, such as pair-1, .*clustering_projection.*mtl probe RUN"):
        uncut_skill(pl.concat([alone, old]), pairs, "clustering")
