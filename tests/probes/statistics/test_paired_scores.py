from __future__ import annotations

import itertools

import numpy as np
import pytest

from mtl.probes.statistics.paired_scores import score_losses
from mtl.tasks.metrics import metric
from mtl.tasks.metrics.metric import f1, share


def f1_of(counts):
    return metric.f1(np.asarray(counts, dtype=float)[None])[0]


def share_of(counts):
    return metric.share(np.asarray(counts, dtype=float)[None])[0]


def by_hand(unchanged, changed, draws, seed):
    """p and interval draw by draw, sentence by sentence."""
    rng = np.random.default_rng(seed)
    sentences = len(unchanged)
    weights = rng.multinomial(sentences, np.full(sentences, 1 / sentences), size=draws)
    exchanged = rng.integers(0, 2, size=(draws, sentences))
    loss = f1_of(unchanged.sum(0)) - f1_of(changed.sum(0))
    resampled, extreme = [], 0
    for weight, exchange in zip(weights, exchanged, strict=True):
        one, other = np.zeros(3), np.zeros(3)
        left, right = np.zeros(3), np.zeros(3)
        for number in range(sentences):
            one += weight[number] * unchanged[number]
            other += weight[number] * changed[number]
            left += changed[number] if exchange[number] else unchanged[number]
            right += unchanged[number] if exchange[number] else changed[number]
        resampled.append(f1_of(one) - f1_of(other))
        extreme += abs(f1_of(left) - f1_of(right)) >= abs(loss) - 1e-9
    return loss, np.quantile(resampled, [0.025, 0.975]), (1 + extreme) / (draws + 1)


def counts(rng, sentences, right):
    gold = rng.integers(1, 5, sentences)
    predicted = rng.integers(1, 5, sentences)
    correct = rng.binomial(np.minimum(gold, predicted), right)
    return np.stack([correct, predicted, gold], 1)


def test_figures_are_those_of_loops_over_sentences() -> None:
    rng = np.random.default_rng(1)
    unchanged = counts(rng, 20, 0.8)
    changed = np.stack([counts(rng, 20, right) for right in (0.8, 0.4)])
    found = score_losses(unchanged, changed, f1, draws=50, seed=3)
    assert found.score == pytest.approx(f1_of(unchanged.sum(0)))
    for index, variant in enumerate(changed):
        loss, (low, high), p = by_hand(unchanged, variant, 50, 3)
        assert found.loss[index] == pytest.approx(loss)
        assert (found.low[index], found.high[index]) == pytest.approx((low, high))
        assert found.p[index] == pytest.approx(p)


def test_p_is_near_that_of_all_exchanges() -> None:
    rng = np.random.default_rng(2)
    unchanged = np.stack([rng.integers(0, 4, 10), np.full(10, 4)], 1)
    changed = np.stack([rng.integers(0, 4, 10), np.full(10, 4)], 1)
    loss = share_of(unchanged.sum(0)) - share_of(changed.sum(0))
    extreme = 0
    for exchange in itertools.product((False, True), repeat=10):
        where = np.array(exchange)[:, None]
        left, right = np.where(where, changed, unchanged), np.where(where, unchanged, changed)
        extreme += abs(share_of(left.sum(0)) - share_of(right.sum(0))) >= abs(loss) - 1e-9
    found = score_losses(unchanged, changed[None], share, draws=20_000)
    assert found.p[0] == pytest.approx(extreme / 2**10, abs=0.02)


@pytest.mark.slow
def test_without_a_difference_few_tests_are_significant() -> None:
    """Of 200 pairs of equally good annotations at most 5 % and what 200 draws scatter (3.1 %)."""
    rng = np.random.default_rng(4)
    worlds = 200
    significant = covered = 0
    for _ in range(worlds):
        unchanged, changed = counts(rng, 300, 0.7), counts(rng, 300, 0.7)
        found = score_losses(unchanged, changed[None], f1, draws=200, seed=int(rng.integers(1 << 30)))
        significant += found.p[0] <= 0.05
        covered += found.low[0] <= 0 <= found.high[0]
    assert significant / worlds <= 0.081
    assert covered / worlds >= 0.92


def test_an_unchanged_annotation_loses_nothing() -> None:
    unchanged = counts(np.random.default_rng(5), 30, 0.7)
    found = score_losses(unchanged, unchanged[None], f1, draws=100)
    assert (found.loss[0], found.low[0], found.high[0], found.p[0], found.q[0]) == (0, 0, 0, 1, 1)


def test_one_of_many_changes_can_be_significant() -> None:
    """With the default number of resamples, and one of 72 heads that matters."""
    rng = np.random.default_rng(8)
    unchanged = counts(rng, 60, 0.95)
    changed = np.stack([counts(rng, 60, 0.2), *[unchanged] * 71])
    found = score_losses(unchanged, changed, f1)
    assert found.q[0] < 0.05
    assert (found.q[1:] == 1).all()


def test_blocks_of_resamples_make_one_sample() -> None:
    rng = np.random.default_rng(9)
    unchanged, changed = counts(rng, 40, 0.8), counts(rng, 40, 0.6)
    found = score_losses(unchanged, changed[None], f1, draws=2500)
    small = score_losses(unchanged, changed[None], f1, draws=500)
    assert found.low[0] == pytest.approx(small.low[0], abs=1.5)
    assert found.high[0] == pytest.approx(small.high[0], abs=1.5)
    assert 1 / 2501 <= found.p[0] <= 1


def test_families_are_adjusted_apart() -> None:
    rng = np.random.default_rng(6)
    unchanged = counts(rng, 80, 0.9)
    changed = np.stack([counts(rng, 80, right) for right in (0.3, 0.9, 0.9, 0.9)])
    together = score_losses(unchanged, changed, f1, draws=300)
    apart = score_losses(unchanged, changed, f1, families=["a", "b", "b", "b"], draws=300)
    assert together.q[0] == pytest.approx(4 * together.p[0])
    assert apart.q[0] == pytest.approx(apart.p[0])
    np.testing.assert_allclose(apart.p, together.p)


def test_no_changes_give_empty_figures() -> None:
    unchanged = counts(np.random.default_rng(7), 5, 0.5)
    assert score_losses(unchanged, np.zeros((0, 5, 3)), f1).loss.shape == (0,)
