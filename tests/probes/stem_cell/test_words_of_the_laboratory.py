"""Each function of the laboratory that turns numbers into a word: below its thresholds, at them and above."""

from __future__ import annotations

import itertools
import math

import numpy as np
import polars as pl
import pytest
from scipy import stats
from scipy.special import stdtr

from mtl.probes.statistics.compared_runs import Difference, deciding_intervals
from mtl.probes.statistics.significance import CANNOT_TELL, holm
from mtl.probes.stem_cell import competition, contest, sharing
from mtl.probes.stem_cell.competition import APART, DIFFERENCE, PRIMARY, TOGETHER, TOO_FEW
from mtl.probes.stem_cell.contest import REFUTED, SUPPORTED, TENTH
from mtl.probes.stem_cell.sharing import MARGIN, who_loses, word_on
from tests.probes.statistics.test_words_at_thresholds import around
from tests.probes.stem_cell.test_first_screen import with_draws

LEVEL = 0.05
BELOW, AT, ABOVE = around(LEVEL)
UNDER, MARK, OVER = around(MARGIN)


def losses(*rows):
    """Rows of task, loss, low, high and corrected p."""
    names = ("task", "loss", "low", "high", "p_holm")
    table = [
        dict(zip(names, row, strict=True)) | {"seeds": 3, "p": None if row[-1] is None else row[-1] / 2}
        for row in rows
    ]
    return pl.DataFrame(table)


@pytest.mark.parametrize(
    ("p", "loss", "high", "word"),
    [
        *((p, 0.5, high, "yes") for p, high in itertools.product((BELOW, AT), (UNDER, MARK, OVER))),
        (ABOVE, 0.5, UNDER, "no"), (ABOVE, 0.5, MARK, "cannot tell"), (ABOVE, 0.5, OVER, "cannot tell"),
        (AT, -0.5, UNDER, "no"), (AT, 0.0, UNDER, "no"), (ABOVE, -0.5, MARK, "cannot tell"),
    ],
)  # fmt: skip
def test_what_sharing_costs(p, loss, high, word):
    assert word_on(losses(("pos", loss, -1.0, high, p)))[0] == word


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([("pos", 0.5, 0.1, UNDER, AT)], True), ([("pos", 0.5, 0.1, MARK, AT)], False),
        ([("pos", 0.5, 0.1, OVER, AT)], False), ([("pos", 2.0, 0.1, 3.0, AT)], False),
        ([("pos", 0.5, 0.1, UNDER, AT), ("dep", 0.5, -0.1, MARK, ABOVE)], False),
        ([("pos", 0.5, 0.1, UNDER, AT), ("dep", 0.5, -0.1, UNDER, ABOVE)], True),
    ],
)  # fmt: skip
def test_no_task_loses_a_point_is_said_only_if_every_interval_ends_below(rows, says):
    assert ("no task loses 1 point" in word_on(losses(*rows))[1]) == says


@pytest.mark.parametrize("seed", range(5))
def test_an_interval_excludes_no_loss_exactly_if_its_corrected_p_decides(seed):
    """Holm's decisions and the printed intervals are one procedure."""
    rng = np.random.default_rng(seed)
    errors, values = rng.uniform(0.2, 2.0, 6), rng.normal(0, 2.5, 6)
    made = [
        Difference(
            value, 0.0, 0.0, 2 * float(stats.t.sf(abs(value) / error, 5)), False, freedom=5.0, error=error
        )
        for value, error in zip(values.tolist(), errors.tolist(), strict=True)
    ]
    made.append(Difference(1.0, math.nan, math.nan, math.nan, False))
    found = deciding_intervals(made)
    p = holm(np.array([one.p for one in made]))
    for one, ((low, high), corrected), expected in zip(made[:-1], found[:-1], p[:-1], strict=True):
        assert corrected == pytest.approx(expected)
        assert (not low < 0 < high) == (corrected <= LEVEL)
        assert low <= one.value <= high
        reach = stats.t.ppf(1 - LEVEL / 6 / 2, 5) * one.error
        if corrected > LEVEL:
            assert (low, high) == pytest.approx((one.value - reach, one.value + reach))
    assert all(map(math.isnan, (*found[-1][0], found[-1][1])))


def test_the_intervals_of_a_family_hold_together():
    """In 95 % of worlds no interval of five tasks misses, whether tasks lose nothing, little or much."""
    rng = np.random.default_rng(0)
    worlds = 400
    for truth in (np.zeros(5), np.array([0.0, 0.0, 0.0, 3.0, 9.0]), np.array([1.0, 2.0, 3.0, 6.0, 9.0])):
        held = 0
        for _ in range(worlds):
            error = np.sqrt(rng.chisquare(8, 5) / 8)
            values = truth + rng.normal(size=5)
            made = [
                Difference(v, 0.0, 0.0, 2 * float(stdtr(8, -abs(v) / e)), False, freedom=8.0, error=float(e))
                for v, e in zip(values.tolist(), error, strict=True)
            ]
            intervals = [interval for interval, _ in deciding_intervals(made)]
            held += all(low <= true <= high for (low, high), true in zip(intervals, truth, strict=True))
        assert held >= stats.binom.ppf(0.0015, worlds, 0.95), truth


@pytest.mark.parametrize(
    ("p", "scope"),
    [
        ((AT, ABOVE, ABOVE, ABOVE), "for a"), ((AT, AT, ABOVE, ABOVE), "for a and b"),
        ((AT, AT, AT, ABOVE), "for 3 of 4 tasks"), ((AT, AT, AT, AT), ""), ((AT, None, None, None), "for a"),
    ],
)  # fmt: skip
def test_for_whom_it_holds(p, scope):
    table = losses(*((task, 2.0, 1.0, 3.0, chance) for task, chance in zip("abcd", p, strict=True)))
    assert who_loses(table) == scope
    gains = losses(("a", 2.0, 1.0, 3.0, AT), ("b", -2.0, -3.0, -1.0, AT))
    assert who_loses(gains) == "for a"


@pytest.mark.parametrize(("seeds", "word"), [(2, "cannot tell"), (3, "yes"), (4, "yes")])
def test_three_seeds_are_needed(seeds, word):
    table = losses(("pos", 2.0, 1.0, 3.0, 0.01)).with_columns(seeds=pl.lit(seeds))
    assert word_on(table)[0] == word


SHARE, SEEDS = around(TENTH), contest.FEWEST_SEEDS


@pytest.mark.parametrize(
    ("seeds", "p", "high", "corrected", "word"),
    [
        (SEEDS, BELOW, 1.0, 1.0, SUPPORTED), (SEEDS, AT, 1.0, 1.0, CANNOT_TELL),
        (SEEDS - 1, BELOW, 1.0, 1.0, CANNOT_TELL), (SEEDS, ABOVE, 1.0, 1.0, CANNOT_TELL),
        *((SEEDS, 0.5, high, corrected, REFUTED if max(high, corrected) < TENTH else CANNOT_TELL)
          for high, corrected in itertools.product(SHARE, SHARE)),
        (SEEDS, BELOW, SHARE[0], SHARE[0], SUPPORTED),
    ],
)  # fmt: skip
def test_the_word_on_the_contest(seeds, p, high, corrected, word):
    found, reason = contest._word(seeds, p, LEVEL, (0.05, -0.1, high), (0.9, 0.05, -0.1, corrected))
    assert found == word
    assert ("; that is less than 10%" in reason) == (word == SUPPORTED and high < TENTH)


@pytest.mark.parametrize(
    ("p", "loss", "word", "finding"),
    [
        (BELOW, 0.1, TOGETHER, "lose more of their skill"), (AT, 0.1, TOGETHER, "lose more of their skill"),
        (ABOVE, 0.1, APART, "do not lose reliably more"), (AT, -0.1, TOGETHER, "gain less skill"),
        (AT, 0.0, TOGETHER, "gain less skill"), (AT, around(0.0)[2], TOGETHER, "lose more of their skill"),
    ],
)  # fmt: skip
def test_the_verdict_on_competition(monkeypatch, p, loss, word, finding):
    made = with_draws(np.random.default_rng(0), 5, tasks=3)
    monkeypatch.setattr(competition, "_lacking", lambda *_: "")
    table = pl.DataFrame({"contested": [True, False], "loss": [loss, 0.0]})
    tests = pl.DataFrame(
        {"test": [PRIMARY, DIFFERENCE], "value": [0.5, None], "p": [p, None], "low": None, "high": None}
    )
    found = competition.together_or_apart(made, table, table, tests, LEVEL)
    assert found.word == word
    assert finding in found.reason
    monkeypatch.setattr(competition, "_lacking", lambda *_: "no masks")
    assert competition.together_or_apart(made, table, table, tests, LEVEL).word == TOO_FEW


@pytest.mark.parametrize(
    ("difference", "p", "word"),
    [
        (0.2, BELOW, "yes"), (0.2, AT, "yes"), (0.2, ABOVE, "cannot tell"), (-0.2, AT, "no"), (0.0, AT, "no"),
        (-0.2, ABOVE, "cannot tell"),
    ],
)  # fmt: skip
def test_do_tasks_want_the_same_heads(monkeypatch, difference, p, word):
    monkeypatch.setattr(sharing, "exchange_test", lambda *_: (difference, p))
    assert sharing.wanted(with_draws(np.random.default_rng(0), 5, tasks=3)).word == word


@pytest.mark.parametrize("tasks", [2, 3, 4, 5])
def test_the_draws_that_are_needed_are_the_fewest_with_which_the_level_can_be_reached(tasks):
    draws = sharing.draws_needed(tasks)
    least = [2 / math.comb(tasks + number, tasks) for number in (draws - 1, draws)]
    assert least[0] > sharing.LEVEL >= least[1]
