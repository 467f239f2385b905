"""The first screen's heads: which ones all tasks keep, and what each is said to do."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from mtl.probes.report.kept_heads import head_roles, kept_heads
from mtl.probes.sites import Site
from mtl.probes.statistics.masks import Masks
from mtl.probes.tables import heads_table

HEADS = 7


def measured(measure, label, values, task="", count=100):
    """A layer of heads in a single-task run."""
    table = heads_table.rows(measure, task, [label], np.array([[values]]), np.array([count]))
    return table.with_columns(regime=pl.lit("stl"), run=pl.lit("a"), seed=1)


def level(measure, label, value, task="dep", count=100):
    return measured(measure, label, [value], task, count).with_columns(head=pl.lit(None, pl.Int32))


@pytest.fixture
def heads():
    none = [0.0] * HEADS

    def of(head, value):
        return [value if place == head else 0.0 for place in range(HEADS)]

    return pl.concat([
        measured("positional", "+1", [0.8, 0.3, *none[2:]]),
        measured("positional", "-3", of(4, 0.6)),
        measured("syntactic", "nsubj to dependent", of(1, 0.91), "dep"),
        level("syntactic_offset", "nsubj to dependent", 0.3),
        measured("syntactic", "acl to head", of(5, 0.99), "dep", count=10),
        level("syntactic_offset", "acl to head", 0.1, count=10),
        measured("clustering", "NNP", [0.95, 0.0, 0.6, *none[3:]], "pos"),
        measured("clustering_shuffled", "NNP", [0.1, 0.0, 0.2, *none[3:]], "pos"),
        measured("clustering", ".", of(3, 1.0), "pos"),
        measured("clustering_shuffled", ".", none, "pos"),
    ])  # fmt: skip


def test_a_head_does_what_it_is_farthest_above_chance_in(heads) -> None:
    roles = {head: words for (_, _, head), words in head_roles(heads).items()}
    assert roles == {
        0: "looks at the next word in 80 %",  # where it looks comes before what it tells apart
        1: "looks from a word to its subject (nsubj) in 91 %, chance 30 %",
        2: "tells NNP from other labels (pos) in 60 %, chance 20 %",
        4: "looks at the word 3 back in 60 %",
    }  # 3 is about punctuation, 5 about a label with few items, 6 does nothing


def test_heads_of_all_tasks_come_with_how_many_tasks_learned_them(heads) -> None:
    opened = np.zeros((2, 3, 1, HEADS), bool)
    opened[..., :3] = True
    opened[1, 1:, 0, 2] = False  # one of three seeds
    learned = opened.copy()
    learned[0, 1:, 0, 0] = False
    masks = Masks(("pos", "dep"), (1, 2, 3), (Site("self", 0),), opened * 1.0, opened, learned)
    found = kept_heads(masks, heads)
    assert [(head.cell, head.learned) for head in found.heads] == [(1, 2), (0, 1)]
    assert found.heads[1].does == "looks at the next word in 80 %"
    assert (found.tasks, found.regime) == (2, "stl")
    assert [head.does for head in kept_heads(masks, None).heads] == ["", ""]
    assert kept_heads(None, heads) is None
