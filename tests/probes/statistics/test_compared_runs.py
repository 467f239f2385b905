"""Intervals for the difference of two setups cover what they say, over runs, sentences and both.

Differences of setups by the spread of all runs: by hand, by scipy, and how often they are right.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from mtl.probes.statistics.compared_runs import compare_setups, difference, score_losses, seed_effect
from mtl.tasks import metrics
from mtl.tasks.metrics import f1, share

SENTENCES = 200


def world(
    rng: np.random.Generator, runs: int, spread: float, together: float, lost: float = 0.0, fewer: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Right words of two setups: sentences differ in difficulty and by setup, runs in their skill.

    With `fewer`, the first setup has only so many runs, and they spread threefold.
    """
    words = rng.integers(4, 30, SENTENCES)
    difficulty = rng.normal(2, 1, SENTENCES)
    by_setup = rng.normal(0, 0.3, SENTENCES)
    made = []
    for side, number, of_runs in ((0.5, fewer or runs, spread * (3 if fewer else 1)), (-0.5, runs, spread)):
        skill = rng.normal(0, of_runs, (number, 1)) + rng.normal(0, together, (number, SENTENCES))
        right = rng.binomial(words, 1 / (1 + np.exp(-difficulty - side * (by_setup + lost) - skill)))
        made.append(np.stack([right, np.broadcast_to(words, right.shape)], -1).astype(float))
    return made[0], made[1]


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "spread"), [(2, 0.0), (2, 0.03), (2, 0.1), (3, 0.03), (5, 0.1)])
def test_the_interval_over_runs_and_sentences_covers(runs: int, spread: float) -> None:
    rng = np.random.default_rng(3)
    draws = 300
    found = [compare_setups(*world(rng, runs, spread, 0.5), share, draws=200, seed=0) for _ in range(draws)]
    covered = sum(result.both[0] <= 0 <= result.both[1] for result in found)
    # 95 % of 300 less three standard errors; an interval that is too wide hides what is there.
    assert stats.binom.ppf(0.0015, draws, 0.95) <= covered
    assert covered <= stats.binom.ppf(0.9985, draws, 0.97)
    rejected = sum(result.p < 0.05 for result in found)
    assert rejected == draws - covered


@pytest.mark.slow
@pytest.mark.parametrize(("fewer", "most"), [(2, 0.12), (3, 0.07)])
def test_fewer_runs_that_spread_more_find_more_than_they_should(fewer: int, most: float) -> None:
    rng, worlds = np.random.default_rng(14), 300
    found = [compare_setups(*world(rng, 6, 0.1, 0.3, fewer=fewer), share, draws=100) for _ in range(worlds)]
    assert sum(result.p <= 0.05 for result in found) / worlds <= most + 0.04


def scarce(rng: np.random.Generator, entities: float) -> list[np.ndarray]:
    """Correct, predicted and true entities of three runs of two setups, in 40 documents."""
    gold = rng.poisson(entities, 40)
    found = 1 / (1 + np.exp(-rng.normal(0.8, 0.8, 40) - rng.normal(0, 0.1, (2, 3, 1))))
    correct = rng.binomial(gold, found)
    predicted = correct + rng.poisson(0.2 * entities, correct.shape)
    return [*np.stack([correct, predicted, np.broadcast_to(gold, correct.shape)], -1).astype(float)]


def near_the_ceiling(rng: np.random.Generator) -> list[np.ndarray]:
    """Right words of three runs of two setups, 99.7 %, in 40 documents of very unequal lengths."""
    words = np.exp(rng.normal(3, 1.2, 40)).astype(int) + 1
    ability = rng.normal(6, 0.7, 40) + rng.normal(0, 0.3, (2, 1, 40)) + rng.normal(0, 0.1, (2, 3, 1))
    right = rng.binomial(words, 1 / (1 + np.exp(-ability)))
    return [*np.stack([right, np.broadcast_to(words, right.shape)], -1).astype(float)]


@pytest.mark.slow
@pytest.mark.parametrize("entities", [0.25, 1.0, None])
def test_few_entities_and_scores_near_the_ceiling_find_little(entities: float | None) -> None:
    rng, worlds, rejected = np.random.default_rng(16), 200, 0
    for _ in range(worlds):
        sides = near_the_ceiling(rng) if entities is None else scarce(rng, entities)
        rejected += compare_setups(*sides, share if entities is None else f1, draws=100).p <= 0.05
    assert rejected <= stats.binom.ppf(0.999, worlds, 0.05)


@pytest.mark.slow
def test_intervals_over_sentences_alone_miss_the_spread_of_runs() -> None:
    rng = np.random.default_rng(4)
    found = [compare_setups(*world(rng, 3, 0.1, 0.5), share, draws=200) for _ in range(200)]
    assert sum(result.sentences[0] <= 0 <= result.sentences[1] for result in found) < 170


def test_a_loss_is_found() -> None:
    rng = np.random.default_rng(5)
    found = [compare_setups(*world(rng, 3, 0.03, 0.3, lost=0.5), share, draws=200) for _ in range(20)]
    assert sum(result.p < 0.05 and result.difference > 0 for result in found) >= 18
    assert all(result.difference == pytest.approx(result.first - result.second) for result in found)


def test_figures_by_hand() -> None:
    first = np.array([[[3, 4], [4, 4]], [[2, 4], [4, 4]]], float)
    second = np.array([[[1, 4], [2, 4]], [[2, 4], [3, 4]]], float)
    result = compare_setups(first, second, share, draws=500)
    assert (result.first, result.second, result.difference) == (81.25, 50.0, 31.25)
    welch = stats.ttest_ind([87.5, 75.0], [37.5, 62.5], equal_var=False).confidence_interval()
    assert result.seeds == pytest.approx(welch)


def test_one_run_says_nothing_of_other_runs() -> None:
    first, second = world(np.random.default_rng(6), 1, 0.1, 0.5)
    result = compare_setups(first, second, share, draws=200)
    assert np.isnan([*result.seeds, *result.both, result.p]).all()
    assert result.sentences[0] < result.difference < result.sentences[1]


def test_runs_without_any_spread_say_nothing_of_how_far_runs_differ() -> None:
    right, wrong = np.array([[[1.0, 3.0]] * 5] * 3), np.array([[[0.0, 3.0]] * 5] * 3)
    result = compare_setups(right, wrong, share, draws=200)
    assert result.difference == pytest.approx(100 / 3)
    assert np.isnan([*result.seeds, *result.both, result.p]).all()


def test_equal_runs_differ_by_nothing() -> None:
    first, _ = world(np.random.default_rng(7), 2, 0.0, 0.0)
    same = np.stack([first[0], first[0]])
    result = compare_setups(same, same, share, draws=200)
    assert (result.difference, result.p) == (0.0, 1.0)
    assert np.isnan([*result.both, *result.sentences]).all()
    assert result.p_sentences == 1.0


def test_runs_that_agree_by_accident_say_no_more_than_the_sentences() -> None:
    rng = np.random.default_rng(8)
    first, second = world(rng, 3, 0.0, 0.5)
    for runs in (first, second):
        runs[1:, -1] += runs[0].sum(0) - runs[1:].sum(1)  # all runs of a setup have the same counts in all
    result = compare_setups(first, second, share, draws=500)
    assert np.isnan(result.seeds).all()
    assert np.diff(result.both)[0] >= 0.99 * np.diff(result.sentences)[0]


def f1_of(counts):
    return metrics.f1(np.asarray(counts, dtype=float)[None])[0]


def share_of(counts):
    return metrics.share(np.asarray(counts, dtype=float)[None])[0]


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
    # Hesterberg (2015): the normal quantile whose plain interval is as wide as Student's.
    outside = stats.norm.cdf(-stats.t.ppf(0.975, sentences - 1) * np.sqrt(sentences / (sentences - 1)))
    return loss, np.quantile(resampled, [outside, 1 - outside]), (1 + extreme) / (draws + 1)


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


def lopsided(rng, documents):
    """All documents gain a word, and one in eight loses eight more: nothing is lost in the mean."""
    words = rng.integers(50, 200, documents)
    right = rng.binomial(words, 0.85)
    changed = right + np.minimum(1, words - right) - np.where(rng.random(documents) < 1 / 8, 8, 0)
    return np.stack([right, words], 1), np.stack([changed, words], 1)


def few_changes(rng, sentences):
    """One sentence in a hundred gains a word, and one loses one."""
    words = rng.integers(7, 28, sentences)
    right = rng.binomial(words, 0.85)
    chance = rng.random(sentences)
    changed = right + np.minimum(chance < 0.01, words - right) - np.minimum(chance > 0.99, right)
    return np.stack([right, words], 1), np.stack([changed, words], 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "units", "most", "least"),
    [(lopsided, 12, 0.2, 0.8), (lopsided, 40, 0.11, 0.88), (few_changes, 300, 0.02, 0.9)],
)
def test_changes_that_are_lopsided_or_few_mislead_an_ablation(make, units, most, least) -> None:
    rng, worlds = np.random.default_rng(15), 300
    found = []
    for _ in range(worlds):
        base, changed = make(rng, units)
        found.append(score_losses(base, changed[None], share, draws=200, seed=int(rng.integers(1 << 30))))
    assert sum(each.p[0] <= 0.05 for each in found) / worlds <= most + 0.04
    assert sum(each.low[0] <= 0 <= each.high[0] for each in found) / worlds >= least - 0.04


def test_an_unchanged_annotation_loses_nothing() -> None:
    unchanged = counts(np.random.default_rng(5), 30, 0.7)
    found = score_losses(unchanged, unchanged[None], f1, draws=100)
    assert (found.loss[0], found.p[0], found.q[0]) == (0, 1, 1)
    assert np.isnan([found.low[0], found.high[0]]).all()  # nothing shows how far the loss may vary


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


DRAWS = 1000


def drawn(rng, spreads, seeds=3, of_seeds=0.0):
    luck = of_seeds * rng.normal(size=seeds)
    return {
        f"setup{place}": dict(enumerate(spread * rng.normal(size=seeds) + luck))
        for place, spread in enumerate(spreads)
    }


def scores(runs, name):
    return np.array([*runs[name].values()])


def moved(runs, name, by):
    return runs | {name: {seed: score + by for seed, score in runs[name].items()}}


def listed(*values):
    return dict(enumerate(values))


COMPARED = {"setup0": 1.0, "setup1": -1.0}


def of_larger_spreads(runs, weights):
    """Value, squared error and degrees of freedom, setup by setup."""
    freedom = sum(len(of_setup) - 1 for of_setup in runs.values())
    of_all = sum(scores(runs, name).var() * len(runs[name]) for name in runs) / freedom
    value, rest, louder = 0.0, 0.0, []
    for name, weight in weights.items():
        value += weight * scores(runs, name).mean()
        own, share = scores(runs, name).var(ddof=1), weight**2 / len(runs[name])
        if own > of_all:
            louder.append((own * share, len(runs[name]) - 1))
        else:
            rest += share
    parts = [*louder, (of_all * rest, freedom)]
    square = sum(part for part, _ in parts)
    return value, square, square**2 / sum(part**2 / of_part for part, of_part in parts), not louder


@pytest.mark.parametrize("weights", [COMPARED, {"setup0": 1.0, "setup1": -0.5, "setup2": -0.5}])
@pytest.mark.parametrize("spreads", [[0.1, 0.1, 0.1, 2.0], [4.0, 0.1, 0.1, 0.4], [4.0, 4.0, 4.0, 0.4]])
@pytest.mark.parametrize("fewer", [False, True])
def test_a_setup_has_its_own_spread_or_that_of_all(weights, spreads, fewer):
    runs = drawn(np.random.default_rng(1), spreads, seeds=4)
    if fewer:
        runs["setup0"] = {seed: runs["setup0"][seed] for seed in (0, 3)}
    found = difference(runs, weights)
    value, square, degrees, pooled = of_larger_spreads(runs, weights)
    assert pooled or spreads[0] > 1
    assert (found.value, found.freedom, found.pooled) == (
        pytest.approx(value),
        pytest.approx(degrees),
        pooled,
    )
    half = stats.t.ppf(0.975, degrees) * np.sqrt(square)
    assert (found.low, found.high) == pytest.approx((value - half, value + half))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(value) / np.sqrt(square), degrees))


def test_quiet_setups_are_compared_as_by_a_linear_model():
    runs = drawn(np.random.default_rng(0), [0.2, 0.2, 1.0, 1.0])
    found = difference(runs, COMPARED)
    assert found.pooled
    # Least squares on indicators of the setups.
    values = np.concatenate([scores(runs, name) for name in runs])
    fitted, squares, *_ = np.linalg.lstsq(np.kron(np.eye(4), np.ones((3, 1))), values, rcond=None)
    error = np.sqrt(squares[0] / 8 * 2 / 3)
    assert found.value == pytest.approx(fitted[0] - fitted[1])
    assert found.high - found.value == pytest.approx(stats.t.ppf(0.975, 8) * error)


def test_two_setups_alone_are_compared_by_welch():
    runs = drawn(np.random.default_rng(2), [1.0, 2.0])
    welch = stats.ttest_ind(*(scores(runs, name) for name in runs), equal_var=False)
    assert difference(runs, COMPARED).p == pytest.approx(welch.pvalue)
    # A setup of one run says nothing about spreads.
    beside = difference(runs | {"setup2": listed(3.0)}, COMPARED)
    assert (beside.low, beside.high) == pytest.approx(tuple(welch.confidence_interval()))


def test_what_has_no_spread_has_no_interval():
    alike = {"setup0": listed(90.0, 90.0, 90.0), "setup1": listed(89.0, 89.0, 89.0)}
    one_run = {"setup0": listed(90.0), "setup1": listed(89.0)}
    others = {"setup2": listed(1.0, 2.0, 3.0), "setup3": listed(5.0, 7.0)}
    one_of_two = {"setup0": listed(90.0), "setup1": listed(88.5, 89.5)}
    for runs in (alike, one_run, one_run | others, one_of_two | others):
        found = difference(runs, COMPARED)
        assert found.value == pytest.approx(1.0)
        assert np.isnan([found.low, found.high, found.p]).all()
        assert not found.pooled


SPREADS = {
    "equal": lambda rng: np.full(9, 0.42),
    "differ a little": lambda rng: 0.42 * np.exp(rng.normal(0, 0.3, 9)),
    "differ much": lambda rng: 0.42 * np.exp(rng.normal(0, 0.6, 9)),
    "both half as much again": lambda rng: np.array([0.63] * 2 + [0.42] * 7),
    "both double": lambda rng: np.array([0.84] * 2 + [0.42] * 7),
    "one double": lambda rng: np.array([0.84] + [0.42] * 8),
    "one fourfold": lambda rng: np.array([1.68] + [0.42] * 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("world", SPREADS)
def test_intervals_cover_where_spreads_differ(world):
    rng = np.random.default_rng(7)
    found = [difference(drawn(rng, SPREADS[world](rng)), COMPARED) for _ in range(2 * DRAWS)]
    covered = np.mean([one.low <= 0 <= one.high for one in found])
    assert covered >= 0.92 - 0.014  # two standard errors
    if world == "equal":
        assert 0.945 <= covered <= 0.985


def failing(rng, often):
    return 0.4 * rng.normal(size=3) - 10 * (rng.random(3) < often)


def usual(rng):
    return 0.4 * rng.normal(size=3)


SHAPES = {
    "heavy tails": ([lambda rng: rng.standard_t(3, 3)] * 9, 0.0, 0.97),
    "skewed the other way": (
        [lambda rng: -rng.exponential(size=3), lambda rng: rng.exponential(size=3) - 2, *[usual] * 7],
        0.0,
        0.9,
    ),
    "near the ceiling": ([lambda rng: np.minimum(rng.normal(99.5, 0.6, 3), 100)] * 9, 0.0, 0.95),
    "a run in ten fails": ([lambda rng: failing(rng, 0.1)] * 9, 0.0, 0.97),
    "a run in five of one setup fails": ([lambda rng: failing(rng, 0.2), *[usual] * 8], -2.0, 0.45),
}
"""By world what draws the runs of each setup, the true difference of the first two, the least coverage."""


@pytest.mark.slow
@pytest.mark.parametrize("world", SHAPES)
def test_intervals_where_runs_are_not_normal(world):
    setups, truth, least = SHAPES[world]
    rng = np.random.default_rng(11)
    made = ({f"setup{place}": listed(*draw(rng)) for place, draw in enumerate(setups)} for _ in range(DRAWS))
    found = [difference(runs, COMPARED) for runs in made]
    assert np.mean([one.low <= truth <= one.high for one in found]) >= least - 0.02


UNEQUAL = {
    "half of the runs, threefold": ([3, 6, 6], [3, 1, 1], 0.09),
    "half of the runs, fourfold": ([3, 6, 6], [4, 1, 1], 0.09),
    "half of the runs, threefold, among nine": ([3] + [6] * 8, [3] + [1] * 8, 0.09),
    "two runs, threefold": ([2, 6, 6], [3, 1, 1], 0.13),
    "two runs among threes, threefold": ([2, 3, 3, 3, 3], [3, 1, 1, 1, 1], 0.09),
    "twice the runs, threefold": ([6, 3, 3], [3, 1, 1], 0.07),
}
"""By world how many runs setups have, how far they spread, and the largest share of false findings at 5 %."""


@pytest.mark.slow
@pytest.mark.parametrize("of_seeds", [0, 1])
@pytest.mark.parametrize("world", UNEQUAL)
def test_unequal_runs_find_little_where_nothing_is(world, of_seeds):
    numbers, spreads, most = UNEQUAL[world]
    rng, found = np.random.default_rng(10), 0
    for _ in range(2 * DRAWS):
        luck = of_seeds * rng.normal(size=max(numbers))
        runs = {
            f"setup{place}": dict(enumerate(spread * rng.normal(size=number) + luck[:number]))
            for place, (number, spread) in enumerate(zip(numbers, spreads, strict=True))
        }
        found += difference(runs, COMPARED).p <= 0.05
    assert found / (2 * DRAWS) <= most + 0.014


@pytest.mark.slow
def test_a_point_is_found_more_often_than_in_pairs():
    rng = np.random.default_rng(8)
    worlds = [drawn(rng, [0.42] * 9) for _ in range(DRAWS)]
    ours = np.mean([difference(moved(runs, "setup0", 1), COMPARED).low > 0 for runs in worlds])
    paired = np.mean(
        [
            stats.ttest_rel(scores(runs, "setup0") + 1, scores(runs, "setup1")).confidence_interval().low > 0
            for runs in worlds
        ]
    )
    assert ours - paired > 0.15


def test_the_seed_effect_is_that_of_a_two_way_layout():
    runs = drawn(np.random.default_rng(4), [0.4] * 5, of_seeds=1.0)
    table = np.array([scores(runs, name) for name in runs])
    rest = (table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()) ** 2
    f = 5 * table.mean(0).var(ddof=1) / (rest.sum() / 8)
    found = seed_effect(runs)
    assert (found.f, found.p) == pytest.approx((f, stats.f.sf(f, 2, 8)))
    beside = difference(runs, COMPARED)
    assert beside.seeds
    assert beside.value == pytest.approx(table[0].mean() - table[1].mean())
    # A setup's residuals have 3 of 15 parts of the 8 degrees of freedom.
    spreads = [(max(rest[place].sum() / 1.6, rest.sum() / 8), rest[place].sum() / 1.6 > rest.sum() / 8)
               for place in (0, 1)]  # fmt: skip
    half = (beside.high - beside.low) / 2 / stats.t.ppf(0.975, beside.freedom)
    assert half**2 == pytest.approx(sum(spread for spread, _ in spreads) / 3)
    assert beside.pooled == (not any(louder for _, louder in spreads))


def test_seeds_that_some_setups_lack_are_no_difference_of_setups():
    """A setup with the lucky seeds alone is compared beside their luck."""
    runs = {f"setup{place}": listed(0.0, 5.0, 9.0) for place in range(6)}
    runs = {name: {seed: score + 0.1 * np.sin(9 * place + seed) for seed, score in of_setup.items()}
            for place, (name, of_setup) in enumerate(runs.items())}  # fmt: skip
    runs["setup0"] = {seed: runs["setup0"][seed] for seed in (1, 2)}
    found = difference(runs, COMPARED)
    assert found.seeds
    assert found.low < 0 < found.high
    assert abs(found.value) < found.high - found.value < 0.4
    runs["setup0"] = {2: runs["setup0"][2]}
    assert abs(difference(runs, COMPARED).value) < 0.3
    apart = {f"setup{place}": {seed + 10 * place: float(seed) for seed in range(3)} for place in range(3)}
    assert np.isnan(seed_effect(apart).p)
    assert not difference(apart, COMPARED).seeds


@pytest.mark.slow
@pytest.mark.parametrize("of_seeds", [0.0, 0.2, 0.42, 0.84])
def test_intervals_cover_where_seeds_count(of_seeds):
    rng = np.random.default_rng(9)
    found = [difference(drawn(rng, [0.42] * 9, of_seeds=of_seeds), COMPARED) for _ in range(2 * DRAWS)]
    covered = np.mean([one.low <= 0 <= one.high for one in found])
    assert covered >= 0.94
    if of_seeds == 0:
        assert covered <= 0.975
        assert np.mean([one.seeds for one in found]) < 0.065
