"""Each function that turns a number into a word: just below its threshold, at it, and just above it."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from mtl.probes.report.page_part import RISING, undertrained
from mtl.probes.sites import Site
from mtl.probes.statistics.head_values import (
    ABLATION,
    POSITIONAL,
    SIGNIFICANT,
    SYNTACTIC_MARGIN,
    head_means,
    heads_of_roles,
)
from mtl.probes.statistics.masks import LEVEL, Masks, reading
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import FEWEST_ITEMS, arcs_count, label_scores


def around(threshold: float) -> tuple[float, float, float]:
    """The next number below a threshold, the threshold, and the next one above it."""
    return math.nextafter(threshold, -math.inf), threshold, math.nextafter(threshold, math.inf)


BELOW, AT, ABOVE = around(LEVEL / 2)


@pytest.mark.parametrize(
    ("more", "fewer", "word"),
    [
        (BELOW, 1.0, "more than chance"), (AT, 1.0, "more than chance"), (ABOVE, 1.0, "as by chance"),
        (1.0, BELOW, "fewer than chance"), (1.0, AT, "fewer than chance"), (1.0, ABOVE, "as by chance"),
        (LEVEL, 1.0, "as by chance"), (1.0, LEVEL, "as by chance"), (None, None, "as by chance"),
        (None, AT, "fewer than chance"), (AT, AT, "more than chance"), (AT, None, "more than chance"),
    ],
)  # fmt: skip
def test_the_finding_on_common_heads(more, fewer, word):
    assert reading(more, fewer) == word


@pytest.mark.parametrize(("items", "counts"), [(29, False), (30, True), (31, True)])
def test_a_label_counts_from_thirty_items(items, counts):
    assert FEWEST_ITEMS == 30
    assert arcs_count("obj", items) == counts
    assert not arcs_count("root", 1000)
    value = np.full((1, 1, 1), 0.5)
    rows = [
        heads_table.rows(name, "dep", ["obj"], value, np.array([items]))
        for name in ("attention", "attention_offset")
    ]
    assert label_scores(pl.concat(rows))["counted"].to_list() == [counts]


@pytest.mark.parametrize(
    ("seeds", "opened", "claims"), [(2, 1, False), (3, 1, False), (3, 2, True), (4, 2, False)]
)
def test_a_claim_is_open_in_more_than_half_of_the_seeds(seeds, opened, claims):
    is_open = (np.arange(seeds) < opened).reshape(1, seeds, 1, 1)
    masks = Masks(
        tasks=("pos",), seeds=tuple(range(seeds)), sites=(Site("self", 0),), gate=is_open.astype(float),
        opened=is_open, learned=is_open,
    )  # fmt: skip
    assert masks.claimed().item() == masks.learned_claims().item() == claims


@pytest.mark.parametrize(("value", "has"), list(zip(around(POSITIONAL), (False, True, True), strict=True)))
def test_a_positional_head(value, has):
    rows = heads_table.rows("positional", "", ["-1"], np.full((1, 1, 1), value), np.array([90]))
    assert (heads_of_roles(rows.with_columns(pl.col("value").cast(pl.Float64))).height == 1) == (
        rows["value"][0] >= POSITIONAL
    )
    assert (value >= POSITIONAL) == has


@pytest.mark.parametrize(("more", "has"), [(-0.01, False), (0.01, True)])
def test_a_syntactic_head(more, has):
    rows = [
        heads_table.rows(name, "dep", ["obj to head"], np.full((1, 1, 1), value), np.array([90]))
        for name, value in (("syntactic", 0.5 + SYNTACTIC_MARGIN + more), ("syntactic_offset", 0.5))
    ]
    assert (heads_of_roles(pl.concat(rows)).height == 1) == has


@pytest.mark.parametrize(
    ("q", "significant"),
    [
        *(([q], word) for q, word in zip(around(SIGNIFICANT), (True, True, False), strict=True)),
        ([0.01, 0.9], False), ([0.01, 0.01, 0.9], True), ([0.01, 0.9, 0.9], False),
    ],
)  # fmt: skip
def test_a_head_is_significant_in_more_than_half_of_the_runs(q, significant):
    rows = [
        {"setup": "STL", "run": str(n), "seed": n, "task": "pos", "measure": ABLATION, "attention": "self",
         "layer": 0, "head": 0, "value": 1.0, "q": each}
        for n, each in enumerate(q)
    ]  # fmt: skip
    assert head_means(pl.DataFrame(rows), ABLATION)["significant"].to_list() == [significant]


@pytest.mark.parametrize(("rise", "says"), list(zip(around(RISING), (False, False, True), strict=True)))
def test_undertrained_runs_gain_more_than_a_point(rise, says):
    history = pl.DataFrame(
        {"setup": "STL", "task": "pos", "seed": 1, "run": "r", "update": [1, 2], "score": [0.0, rise]}
    )
    assert (undertrained(history).height == 1) == says
