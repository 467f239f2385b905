"""Equivalence, recovery and contrast: by hand, against scipy, and their levels by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_rel

from mtl.probes.stem_cell.statistics.equivalence import contrast, equivalence, margin_for, recovery


def test_the_margin_is_fixed_by_the_number_of_runs() -> None:
    assert [margin_for(runs) for runs in (6, 9, 10, 30)] == [1.0, 1.0, 0.5, 0.5]
    with pytest.raises(
        ValueError, match="3 seeds are too few to say whether a single task is reached: train 6"
    ):
        margin_for(3)


def test_equivalence_by_hand_and_against_scipy() -> None:
    rng = np.random.default_rng(1)
    single = 80 + rng.normal(size=8)
    remedy = single + rng.normal(0.1, 0.3, 8)
    found = equivalence(remedy, single)
    lower = ttest_rel(remedy + 1.0, single, alternative="greater").pvalue
    upper = ttest_rel(remedy - 1.0, single, alternative="less").pvalue
    assert found.p == pytest.approx(max(lower, upper))
    interval = ttest_1samp(remedy - single, 0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert (found.word, found.margin, found.runs) == ("reaches", 1.0, 8)
    assert equivalence(remedy, single, 0.05).word == "cannot tell"
    assert equivalence(remedy - 3, single).word == equivalence(remedy + 3, single).word == "differs"
    # Differences of 0, 0, 1, 1: mean 0.5, standard error 0.2887, t(3) at 95 % 2.3534.
    by_hand = equivalence(np.array([0.0, 0.0, 1.0, 1.0]), np.zeros(4), 1.0)
    assert (by_hand.low, by_hand.high) == pytest.approx((-0.1794, 1.1794), abs=1e-3)
    assert by_hand.word == "cannot tell"


def test_the_word_is_reaches_in_at_most_one_of_twenty_draws_at_the_margin() -> None:
    rng = np.random.default_rng(2)
    draws = 2000
    for difference in (-1.0, 1.0):
        words = [equivalence(rng.normal(difference, 0.4, 6), np.zeros(6)).word for _ in range(draws)]
        assert 0.03 < words.count("reaches") / draws < 0.065
        assert words.count("differs") / draws < 0.065
    words = [equivalence(rng.normal(0.0, 0.5, 6), np.zeros(6)).word for _ in range(500)]
    assert words.count("reaches") / 500 > 0.85  # power where the scores are equal
    assert words.count("differs") == 0


def test_recovery_by_hand_and_its_limits() -> None:
    joint = np.array([70.0, 71.0, 69.0, 70.0])
    single = joint + np.array([2.0, 2.0, 2.0, 2.0])
    found = recovery(joint + np.array([1.0, 1.0, 1.0, 1.0]), joint, single)
    assert (found.share, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert recovery(joint, joint, single).share == 0
    assert recovery(single, joint, single).share == 1
    # A loss that may be none has no ratio.
    uncertain = recovery(joint + 1, joint, joint + np.array([2.0, -2.0, 1.5, -1.0]))
    assert (uncertain.share, uncertain.low, uncertain.high) == (None, None, None)


def test_recovery_is_the_set_of_ratios_that_a_t_test_keeps() -> None:
    """Fieller's interval inverts the test that gained - ratio * lost has mean 0."""
    rng = np.random.default_rng(3)
    joint = 70 + rng.normal(size=6)
    single, remedy = joint + rng.normal(2.0, 0.4, 6), joint + rng.normal(1.2, 0.5, 6)
    found = recovery(remedy, joint, single)
    assert found.low < found.share < found.high
    for ratio in (found.low, found.high):
        assert ttest_1samp(remedy - joint - ratio * (single - joint), 0).pvalue == pytest.approx(0.05)


def test_recovery_covers_the_truth() -> None:
    rng = np.random.default_rng(4)
    draws, covered, given = 1500, 0, 0
    for _ in range(draws):
        shared = rng.normal(0, 0.5, 6)  # of the joint run, in both differences
        gained = 1.2 + shared + rng.normal(0, 0.4, 6)
        lost = 2.0 + shared + rng.normal(0, 0.4, 6)
        found = recovery(gained, np.zeros(6), lost)
        if found.share is not None:
            given += 1
            covered += found.low <= 0.6 <= found.high
    assert given > 0.95 * draws
    assert 0.93 < covered / given < 0.97


def test_the_contrast_is_a_one_sided_paired_test_with_three_words() -> None:
    rng = np.random.default_rng(5)
    placebo = 75 + rng.normal(size=6)
    remedy = placebo + rng.normal(0.8, 0.3, 6)
    found = contrast(remedy, placebo, 2.0)
    assert found.p == pytest.approx(ttest_rel(remedy, placebo, alternative="greater").pvalue)
    assert found.word == "supported"
    assert contrast(placebo, remedy, 2.0).word == "refuted"
    assert contrast(placebo + np.array([1, -1, 1, -1, 1, -1.0]), placebo, 2.0).word == "cannot tell"
    assert contrast(placebo - 0.1, placebo, 2.0).word == "refuted"
    draws = 2000
    words = [contrast(rng.normal(0.0, 0.6, 6), np.zeros(6), 2.0).word for _ in range(draws)]
    assert 0.035 < words.count("supported") / draws < 0.065
    # A true effect of a tenth of the gap is called refuted in at most one of twenty draws.
    words = [contrast(rng.normal(0.2, 0.2, 6), np.zeros(6), 2.0).word for _ in range(draws)]
    assert words.count("refuted") / draws < 0.065


def test_runs_that_cannot_be_compared_are_one_line() -> None:
    with pytest.raises(ValueError, match="one seed has no spread"):
        contrast(np.ones(1), np.ones(1), 1.0)
    with pytest.raises(ValueError, match="above 0"):
        equivalence(np.ones(6), np.ones(6), 0.0)
