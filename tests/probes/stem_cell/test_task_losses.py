"""What tasks lose over seeds, against arithmetic by hand, scipy and seeds that differ by chance alone."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy.stats import ttest_ind, ttest_rel

from mtl.probes.stem_cell.competition import SIGNS, SPREAD, task_losses
from tests.probes import worlds


def test_losses_by_hand():
    """Two labels of 10 and 20 items, two heads; the best head is chosen anew in each run."""
    stl = np.zeros((3, 1, 2, 1, 2))
    stl[:, 0, 0, 0], stl[:, 0, 1, 0] = [[0.5, 0.1], [0.6, 0.1], [0.1, 0.7]], [[0.3, 0.9]] * 3
    joint = np.zeros((3, 1, 2, 1, 2))
    joint[:, 0, 0, 0], joint[:, 0, 1, 0] = [[0.2, 0.4]] * 3, [[0.9, 0.1], [0.9, 0.1], [0.6, 0.1]]
    static = np.full((1, 1, 2, 1, 2), 0.5)
    heads = pl.concat(
        [
            worlds.heads(stl, "stl", ("dep",)),
            worlds.heads(joint, "joint", ("dep",)),
            worlds.heads(static, "pretrained", ("dep",), (0,)),
        ]
    )
    alone, before = task_losses(heads).iter_rows(named=True)
    expected = [0.1 * 10 / 30, 0.2 * 10 / 30, (0.3 * 10 + 0.3 * 20) / 30]
    assert (alone["comparison"], alone["task"]) == ("joint against stl", "dep")
    assert (alone["labels"], alone["seeds"], alone["worse"], alone["pairs"]) == (2, 3, 3, 3)
    assert alone["loss"] == pytest.approx(np.mean(expected))
    assert alone["paired_p"] == pytest.approx(2 / 8)
    interval = ttest_rel(expected, np.zeros(3)).confidence_interval(0.95)
    assert (alone["paired_low"], alone["paired_high"]) == pytest.approx((interval.low, interval.high))
    runs = [np.array([0.5 * 10 + 0.9 * 20, 0.6 * 10 + 0.9 * 20, 0.7 * 10 + 0.9 * 20]) / 30]
    runs.append(np.array([0.4 * 10 + 0.9 * 20, 0.4 * 10 + 0.9 * 20, 0.4 * 10 + 0.6 * 20]) / 30)
    welch = ttest_ind(*runs, equal_var=False)
    interval = welch.confidence_interval(0.95)
    assert alone["p"] == alone["p_holm"] == pytest.approx(welch.pvalue)
    assert (alone["low"], alone["high"]) == pytest.approx((interval.low, interval.high))
    assert before["comparison"] == "joint against pretrained"
    assert (alone["p_by"], before["p_by"]) == (SPREAD, SIGNS)  # which test gave p, and so its interval
    assert before["p"] == before["paired_p"]
    assert before["loss"] == pytest.approx(
        np.mean([(0.1 * 10 - 0.4 * 20) / 30] * 2 + [(0.1 * 10 - 0.1 * 20) / 30])
    )


def test_only_labels_and_seeds_that_both_have():
    stl, joint = np.full((2, 2, 2, 1, 1), 0.6), np.full((2, 2, 2, 1, 1), 0.5)
    heads = pl.concat(
        [
            worlds.heads(stl, "stl", ("pos", "dep"), (1, 2)),
            worlds.heads(joint, "joint", ("pos", "dep"), (2, 3)),
        ]
    )
    heads = heads.filter((pl.col("regime") != "joint") | (pl.col("label") != "label 0"))
    for row in task_losses(heads).iter_rows(named=True):
        assert (row["labels"], row["seeds"], row["worse"], row["pairs"]) == (1, 2, 1, 1)
        assert (row["low"], row["high"], row["p"], row["paired_p"]) == (None, None, None, None)
        assert row["loss"] == pytest.approx(0.1)


@pytest.mark.slow
def test_many_labels_of_runs_that_differ_by_chance_are_no_evidence():
    """One seed's run is better throughout: a sign test over its labels would have p = 2^-10."""
    rng = np.random.default_rng(5)
    small, draws = 0, 200
    for _ in range(draws):
        luck = rng.normal(scale=0.02, size=(2, 6, 1, 1, 1, 1))
        stl, joint = 0.6 + luck[0] + np.zeros((6, 1, 10, 1, 2)), 0.6 + luck[1] + np.zeros((6, 1, 10, 1, 2))
        seeds = (1, 2, 3, 4, 5, 6)
        heads = pl.concat(
            [worlds.heads(stl, "stl", ("dep",), seeds), worlds.heads(joint, "joint", ("dep",), seeds)]
        )
        small += task_losses(heads)["p"][0] <= 0.05
    assert small / draws <= 0.05 + 3 * (0.05 * 0.95 / draws) ** 0.5
