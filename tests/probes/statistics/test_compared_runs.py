"""Intervals for the difference of two setups cover what they say, over runs, sentences and both."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mtl.probes.statistics.compared_runs import compare
from mtl.tasks.metrics.metric import share

SENTENCES = 200


def world(
    rng: np.random.Generator, runs: int, spread: float, together: float, lost: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Right words of two setups: sentences differ in difficulty and by setup, runs in their skill."""
    words = rng.integers(4, 30, SENTENCES)
    difficulty = rng.normal(2, 1, SENTENCES)
    by_setup = rng.normal(0, 0.3, SENTENCES)
    made = []
    for side in (0.5, -0.5):
        skill = rng.normal(0, spread, (runs, 1)) + rng.normal(0, together, (runs, SENTENCES))
        right = rng.binomial(words, 1 / (1 + np.exp(-difficulty - side * (by_setup + lost) - skill)))
        made.append(np.stack([right, np.broadcast_to(words, right.shape)], -1).astype(float))
    return made[0], made[1]


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.03, 0.1])
@pytest.mark.parametrize("runs", [2, 3, 5])
def test_the_interval_over_runs_and_sentences_covers(runs: int, spread: float) -> None:
    rng = np.random.default_rng(3)
    draws = 300
    found = [compare(*world(rng, runs, spread, 0.5), share, draws=200, seed=0) for _ in range(draws)]
    covered = sum(result.both[0] <= 0 <= result.both[1] for result in found)
    # 95 % of 300 less three standard errors; an interval that is too wide hides what is there.
    assert stats.binom.ppf(0.0015, draws, 0.95) <= covered
    assert covered <= stats.binom.ppf(0.9985, draws, 0.97)
    rejected = sum(result.p < 0.05 for result in found)
    assert rejected == draws - covered


@pytest.mark.slow
def test_intervals_over_sentences_alone_miss_the_spread_of_runs() -> None:
    rng = np.random.default_rng(4)
    found = [compare(*world(rng, 3, 0.1, 0.5), share, draws=200) for _ in range(200)]
    assert sum(result.sentences[0] <= 0 <= result.sentences[1] for result in found) < 170


def test_a_loss_is_found() -> None:
    rng = np.random.default_rng(5)
    found = [compare(*world(rng, 3, 0.03, 0.3, lost=0.5), share, draws=200) for _ in range(20)]
    assert sum(result.p < 0.05 and result.difference > 0 for result in found) >= 18
    assert all(result.difference == pytest.approx(result.first - result.second) for result in found)


def test_figures_by_hand() -> None:
    first = np.array([[[3, 4], [4, 4]], [[2, 4], [4, 4]]], float)
    second = np.array([[[1, 4], [2, 4]], [[2, 4], [3, 4]]], float)
    result = compare(first, second, share, draws=500)
    assert (result.first, result.second, result.difference) == (81.25, 50.0, 31.25)
    welch = stats.ttest_ind([87.5, 75.0], [37.5, 62.5], equal_var=False).confidence_interval()
    assert result.seeds == pytest.approx(welch)


def test_one_run_says_nothing_of_other_runs() -> None:
    first, second = world(np.random.default_rng(6), 1, 0.1, 0.5)
    result = compare(first, second, share, draws=200)
    assert np.isnan([*result.seeds, *result.both, result.p]).all()
    assert result.sentences[0] < result.difference < result.sentences[1]


def test_runs_without_any_spread_say_nothing_of_how_far_runs_differ() -> None:
    right, wrong = np.array([[[1.0, 3.0]] * 5] * 3), np.array([[[0.0, 3.0]] * 5] * 3)
    result = compare(right, wrong, share, draws=200)
    assert result.difference == pytest.approx(100 / 3)
    assert np.isnan([*result.seeds, *result.both, result.p]).all()


def test_equal_runs_differ_by_nothing() -> None:
    first, _ = world(np.random.default_rng(7), 2, 0.0, 0.0)
    same = np.stack([first[0], first[0]])
    result = compare(same, same, share, draws=200)
    assert (result.difference, result.both, result.p) == (0.0, (0.0, 0.0), 1.0)
    assert result.p_sentences == 1.0


def test_runs_that_agree_by_accident_say_no_more_than_the_sentences() -> None:
    rng = np.random.default_rng(8)
    first, second = world(rng, 3, 0.0, 0.5)
    for runs in (first, second):
        runs[1:, -1] += runs[0].sum(0) - runs[1:].sum(1)  # all runs of a setup have the same counts in all
    result = compare(first, second, share, draws=500)
    assert np.isnan(result.seeds).all()
    assert np.diff(result.both)[0] >= 0.99 * np.diff(result.sentences)[0]
