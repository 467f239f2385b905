"""The contest for heads: against dummy variables, in worlds with and without it, and what it cannot use."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom

from mtl.probes.stem_cell.contest import (
    CANNOT_TELL,
    NORMAL_SCORES,
    REFUTED,
    SKILL_POINTS,
    STANDARDISED_LOGS,
    STANDARDISED_POINTS,
    SUPPORTED,
    ContestCells,
    TaskWorth,
    contest,
    estimate_contest,
    logs,
    normal_scores,
    standardised_logs,
)
from tests.probes.stem_cell.worlds_contest import TASKS, WITHOUT, ablated, archive, tables, uncertain, world

WORLDS = 200
PERMUTATIONS = 199
"""A p of exactly 0.05, and tails of exactly 0.025: more would change neither size nor coverage."""
IN_ALL = pytest.mark.parametrize("worlds", [80, pytest.param(400, marks=pytest.mark.slow)])


def most(worlds):
    """Rejections that a test of level 0.05 exceeds once in a thousand."""
    return binom.ppf(0.999, worlds, 0.05)


@functools.cache
def estimates(kind="plain", unit=STANDARDISED_LOGS, worlds=WORLDS, masks=False, **planted):
    """Estimates in so many worlds, without the masks of single seeds unless they are asked for."""
    found = []
    for draw in range(worlds):
        cells = world(np.random.default_rng([11, draw]), kind, **planted)
        cells = cells if masks else replace(cells, of_seeds={})
        found.append(estimate_contest(cells, unit, draws=PERMUTATIONS))
    return found


def rejected(found):
    return sum(each.p <= 0.05 for each in found)


def dummies(cells: ContestCells, unit) -> tuple[float, list[float]]:
    """Beta by least squares, a dummy variable for each head and task, and each task, partner and layer."""
    rows, values, names = [], [], []
    for of in cells.tasks:
        scaled = unit.scaled(of.worth)
        for (column, partner), cell in itertools.product(
            enumerate(of.partners), np.flatnonzero(cells.claims[of.task])
        ):
            names.append(((of.task, cell), (of.task, partner, cells.strata[cell])))
            rows.append(float(cells.claims[partner][cell]))
            values.append(scaled[:, column, cell])
    effects = list(dict.fromkeys(itertools.chain(*names)))
    place = {name: number for number, name in enumerate(effects)}
    design = np.zeros((len(rows), len(effects) + 1))
    design[:, -1] = rows
    for number, pair in enumerate(names):
        design[number, [place[name] for name in pair]] = 1
    outcomes = (np.mean(values, axis=1), *np.transpose(values))
    beta, *of_seeds = (-np.linalg.lstsq(design, outcome)[0][-1] for outcome in outcomes)
    return beta, of_seeds


@pytest.mark.parametrize("unit", [STANDARDISED_LOGS, NORMAL_SCORES, SKILL_POINTS], ids=lambda unit: unit.name)
def test_beta_is_that_of_dummy_variables(unit):
    cells = world(np.random.default_rng(1), "a partner scales", loss=0.3)
    half = TaskWorth("pos", cells.tasks[0].partners[1:], cells.tasks[0].worth[:, 1:])
    uneven = replace(cells, tasks=(half, *cells.tasks[1:]))  # a pair of which only one half was measured
    for each in (cells, uneven):
        found = estimate_contest(each, unit, draws=99)
        beta, of_seeds = dummies(each, unit)
        assert found.beta == pytest.approx(beta, abs=1e-9)
        assert found.per_seed == pytest.approx(of_seeds, abs=1e-9)
        assert np.mean(found.per_seed) == pytest.approx(found.beta)


@IN_ALL
@pytest.mark.parametrize("kind", WITHOUT)
def test_worlds_without_a_contest_are_rarely_rejected(kind, worlds):
    found = estimates(kind, worlds=worlds)
    assert rejected(found) <= most(worlds)
    shares = np.array([each.share for each in found])
    assert abs(shares.mean()) < max(0.005, 3.3 * shares.std() / worlds**0.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WITHOUT)
def test_worlds_without_a_contest_are_rarely_rejected_by_normal_scores(kind):
    found = estimates(kind, NORMAL_SCORES)
    assert rejected(found) <= most(WORLDS)
    shares = np.array([each.share for each in found])
    assert abs(shares.mean()) < max(0.01, 3.3 * shares.std() / WORLDS**0.5)


@pytest.mark.slow
def test_a_tenth_lost_is_found_at_the_noise_that_was_measured():
    found = estimates(loss=0.1)
    assert rejected(found) >= 0.9 * WORLDS
    assert np.mean([each.share for each in found]) == pytest.approx(0.1, abs=0.006)
    ablation = estimates(unit=NORMAL_SCORES, worlds=60, loss=0.1)
    assert rejected(ablation) >= 0.9 * 60
    assert np.mean([each.share for each in ablation]) == pytest.approx(0.1, abs=0.02)


@IN_ALL
@pytest.mark.parametrize("loss", [0.0, 0.1, 0.2])
def test_the_interval_covers_what_was_planted(loss, worlds):
    found = estimates(worlds=worlds, loss=loss) if loss else estimates("plain", worlds=worlds)
    covered = sum(each.share_low <= loss <= each.share_high for each in found)
    assert covered >= binom.ppf(0.001, worlds, 0.95)


@pytest.mark.slow
def test_a_null_with_enough_data_is_refuted_and_a_fifth_lost_is_not():
    words = [each.word for each in estimates(worlds=100, masks=True, noise=0.15, seeds=6)]
    assert words.count(REFUTED) >= 0.9 * 100
    assert words.count(SUPPORTED) <= most(100)
    words = [each.word for each in estimates(masks=True, loss=0.2)]
    assert words.count(REFUTED) == 0
    assert words.count(SUPPORTED) >= 0.95 * WORLDS
    noisy = [each.word for each in estimates(noise=2.0, masks=True, worlds=60)]
    assert noisy.count(CANNOT_TELL) >= 0.8 * 60


def coverage(found, loss, low="share_low", high="share_high"):
    return np.mean([getattr(each, low) <= loss <= getattr(each, high) for each in found])


def drawn(make, worlds, **planted):
    return [
        estimate_contest(make(np.random.default_rng([13, number]), **planted), draws=PERMUTATIONS)
        for number in range(worlds)
    ]


@pytest.mark.slow
def test_the_level_holds_on_the_noise_of_the_archive():
    """Each partner permuted on its own rejects in 0.09 of such worlds (2,500), and covers 0.90."""
    found = drawn(archive, 80)
    assert rejected(found) <= most(80)
    assert coverage(found, 0.0) >= 0.86
    assert np.mean([each.reliability for each in found]) == pytest.approx(0.516, abs=0.001)


@pytest.mark.slow
def test_a_loss_of_a_tenth_is_rarely_refuted_where_claims_have_an_error():
    """By the interval that takes claims as known, in 0.38 of such worlds."""
    found = drawn(uncertain, 80, loss=0.1)
    assert [each.word for each in found].count(REFUTED) <= most(80)
    assert coverage(found, 0.1, "corrected_low", "corrected_high") >= 0.88
    assert coverage(found, 0.1) < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.1, 0.2])
def test_the_corrected_interval_covers_where_claims_have_an_error(loss):
    found = drawn(uncertain, 400, loss=loss)
    assert coverage(found, loss, "corrected_low", "corrected_high") >= 0.90
    words = [each.word for each in found]
    if loss:
        assert words.count(REFUTED) / 400 <= 0.05
        assert words.count(SUPPORTED) / 400 > 0.35
    else:
        assert rejected(found) <= most(400)
        assert words.count(REFUTED) / 400 > 0.1  # the word can still be had


@pytest.mark.slow
def test_level_and_coverage_on_the_noise_of_the_archive():
    for alike in (0.0, 0.36, 0.9):
        found = drawn(archive, 600, alike=alike)
        assert rejected(found) <= most(600)
        assert coverage(found, 0.0) >= 0.90
    assert rejected(drawn(archive, 100, loss=0.1)) >= 95


def by_pair(random):
    """The archive's noise, and beside each partner another effect of its claims, whose mean is zero."""
    cells = archive(random)
    effect = {frozenset(pair): random.normal(0, 0.1) for pair in itertools.combinations(TASKS, 2)}
    tasks = []
    for of in cells.tasks:
        gains = [
            effect[frozenset((of.task, partner))] * cells.claims[partner] * cells.claims[of.task]
            for partner in of.partners
        ]
        tasks.append(replace(of, worth=of.worth * np.exp(gains)))
    return replace(cells, tasks=tuple(tasks))


def of_three(random):
    """Three tasks that keep six heads each: some six claims can be compared."""
    cells, names, tasks = world(random, claimed=6), TASKS[:3], []
    for of in cells.tasks[:3]:
        known = [place for place, partner in enumerate(of.partners) if partner in names]
        partners = tuple(of.partners[place] for place in known)
        tasks.append(TaskWorth(of.task, partners, of.worth[:, known]))
    return replace(cells, tasks=tuple(tasks), of_seeds={})


@pytest.mark.slow
@pytest.mark.parametrize(("make", "most", "least"), [(by_pair, 0.13, 0.81), (of_three, 0.08, 0.89)])
def test_effects_by_pair_and_few_claims_mislead(make, most, least):
    found = [each for each in drawn(make, 300) if each.heads]
    assert rejected(found) / len(found) <= most + 0.05
    assert coverage(found, 0.0) >= least - 0.05


def ablations(worlds, loss=0.0, **measured):
    """Estimates by ablation in worlds of the archive, measured on so many sentences and seeds."""
    made = (ablated(np.random.default_rng([17, world]), loss, **measured) for world in range(worlds))
    return [estimate_contest(cells, STANDARDISED_POINTS, draws=PERMUTATIONS) for cells in made]


def half_width(found):
    return float(np.median([each.share_high - each.share_low for each in found])) / 2


@pytest.mark.slow
def test_ablation_needs_sentences_and_seeds():
    """docs/results/contest.md has more of it."""
    few, many = ablations(60), ablations(60, sentences=12_000, seeds=6)
    assert max(rejected(few), rejected(many)) <= most(60)
    assert min(coverage(few, 0.0), coverage(many, 0.0)) >= 0.86
    assert half_width(few) > 0.4
    assert half_width(many) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("seeds", [3, 6])
def test_size_coverage_and_power_of_ablation(share, seeds):
    few, many = (
        {loss: ablations(200, loss, sentences=sentences, seeds=seeds, share=share) for loss in (0.0, 0.25)}
        for sentences in (300, 12_000)
    )
    for found in (few, many):
        assert rejected(found[0.0]) <= most(200)
        assert all(coverage(of_loss, loss) >= 0.9 for loss, of_loss in found.items())
    assert rejected(few[0.25]) / 200 < 0.5
    assert rejected(many[0.25]) / 200 > {1.0: 0.7, 0.5: 0.2}[share]
    assert half_width(many[0.0]) < {1.0: 0.4, 0.5: 0.85}[share] * half_width(few[0.0])


def test_claims_that_repeat_are_corrected_by_nothing():
    found = estimate_contest(world(np.random.default_rng(3), loss=0.1), draws=199)
    assert found.reliability == pytest.approx(1)
    assert (found.corrected, found.corrected_low, found.corrected_high) == pytest.approx(
        (found.share, found.share_low, found.share_high)
    )


def test_the_correction_by_hand():
    """Claims of one seed as instrument for the mean of the others', by dense projections."""
    cells = uncertain(np.random.default_rng(5), loss=0.1)
    found = estimate_contest(cells, draws=99)
    upper = lower = 0.0
    agree = np.zeros((3, 3))
    for of in cells.tasks:
        own, names = np.flatnonzero(cells.claims[of.task]), of.partners
        effects = np.array(
            [
                [cell == other for other in own]
                + [(name, layer) == (partner, cells.strata[cell]) for name in names for layer in range(6)]
                for partner in names
                for cell in own
            ],
            dtype=float,
        )
        rest = np.eye(len(effects)) - effects @ np.linalg.pinv(effects)
        claim = np.array(
            [[cells.of_seeds[name][seed, own] for name in names] for seed in range(3)], dtype=float
        )
        claim = claim.reshape(3, -1) @ rest
        worth = standardised_logs(of.worth).mean(0)[:, own].ravel()
        others = (claim.sum(0) - claim) / 2
        upper -= (claim @ worth).sum()
        lower += (claim * others).sum()
        agree += claim @ claim.T
    beta = upper / lower
    lengths = np.sqrt(np.diag(agree))
    one = (agree / np.outer(lengths, lengths))[~np.eye(3, dtype=bool)].mean()
    assert found.reliability == pytest.approx(3 * one / (1 + 2 * one))
    scale = np.log1p(-found.share) / found.beta
    assert np.log1p(-found.corrected) / beta == pytest.approx(scale)


def test_claims_of_one_seed_refute_nothing():
    cells = world(np.random.default_rng(3), noise=0.1)
    one = {task: opened[:1] for task, opened in cells.of_seeds.items()}
    assert estimate_contest(cells, draws=199).word == REFUTED
    for of_seeds in ({}, one):
        found = estimate_contest(replace(cells, of_seeds=of_seeds), draws=199)
        assert found.word == CANNOT_TELL
        assert np.isnan(found.corrected)
        assert "how well claims repeat is not known" in found.reason


def test_tables_give_what_arrays_give_whatever_their_order():
    cells = world(np.random.default_rng(3), loss=0.2)
    worth, claims = tables(cells)
    found, notes = contest(worth, claims, draws=99)
    assert notes == ()
    assert found == estimate_contest(cells, draws=99)
    again, _ = contest(worth.sample(fraction=1, shuffle=True, seed=1), claims, draws=99)
    assert again.beta == pytest.approx(found.beta)
    assert (again.heads, again.seeds) == (found.heads, found.seeds)
    assert found.word == SUPPORTED
    assert found.reason.startswith("a claimed head is worth 2")


def test_which_heads_the_estimate_rests_on():
    cells = world(np.random.default_rng(3))
    expected = sum(
        len({bool(cells.claims[other][cell]) for other in TASKS if other != task}) == 2
        for task in TASKS
        for cell in np.flatnonzero(cells.claims[task])
    )
    found = estimate_contest(cells, draws=99)
    assert found.heads == expected
    of = {
        cell
        for task in TASKS
        for cell in np.flatnonzero(cells.claims[task])
        if len({bool(cells.claims[other][cell]) for other in TASKS if other != task}) == 2
    }
    by_all = sum(all(cells.claims[task][cell] for task in TASKS) for cell in range(len(cells.strata)))
    counts = [int(number) for number in re.findall(r"\d+", found.reason.partition("it rests on ")[2])]
    assert counts == [expected, len(of), len(TASKS), *[by_all] * (by_all > 0)]


def test_one_task_alone_can_be_asked_for():
    worth, claims = tables(world(np.random.default_rng(3), loss=0.2))
    found, _ = contest(worth, claims, tasks=("dep",), draws=99)
    assert found.heads <= 18
    with pytest.raises(ValueError, match="no pair run of two tasks"):
        contest(worth, claims, tasks=("cola",))


def test_two_seeds_are_too_few_for_a_word():
    found = estimate_contest(world(np.random.default_rng(3), loss=0.5, noise=0.01, seeds=2), draws=99)
    assert found.word == CANNOT_TELL
    assert found.reason.startswith("2 seeds of every pair, and 3 are needed; a claimed head is worth 49.8 %")


def test_one_partner_leaves_nothing_to_compare():
    worth, claims = tables(world(np.random.default_rng(3)))
    pair = ["pos", "dep"]
    found, _ = contest(
        worth.filter(pl.col("task").is_in(pair) & pl.col("partner").is_in(pair)),
        claims.filter(pl.col("task").is_in(pair)),
    )
    assert found.word == CANNOT_TELL
    assert found.reason == "no claimed head has both a partner that claims it and one that does not"
    assert found.heads == 0


def test_what_is_missing_is_said():
    worth, claims = tables(world(np.random.default_rng(3)))
    thin = worth.filter(~((pl.col("task") == "pos") & (pl.col("partner") == "ner") & (pl.col("seed") == 2)))
    found, notes = contest(thin, claims, draws=99)
    assert found.seeds == (1, 3)
    assert notes == ("no worth of heads for pos beside ner with seed 2: left out of the contest",)
    apart = claims.with_columns(
        claimed=pl.when(pl.col("task") == "ner").then(pl.col("layer") == 0).otherwise(
            pl.col("claimed") & (pl.col("layer") > 0)
        )
    )  # fmt: skip
    _, notes = contest(worth, apart, draws=99)
    assert "ner and pos claim no head in common: their pair shows only" in notes[0]
    with pytest.raises(ValueError, match=r"pos beside ner, seed 1: 71 of 72 heads have a value"):
        contest(worth[1:], claims)
    with pytest.raises(ValueError, match="no seed that all pairs have"):
        contest(worth.filter((pl.col("seed") == 1) ^ (pl.col("task") == "pos")), claims)
    with pytest.raises(ValueError, match="encoders of different shapes"):
        contest(worth.with_columns(pl.col("layer") + 1), claims)


def test_closed_heads_have_no_logarithm():
    worth, claims = tables(world(np.random.default_rng(3)))
    closed = worth.with_columns(
        pl.when(pl.int_range(pl.len()) == 5).then(0.0).otherwise("worth").alias("worth")
    )
    with pytest.raises(
        ValueError, match=r"pos beside ner.*: 1 head has importance 0 or none \(closed or cut"
    ):
        contest(closed, claims, draws=99)
    assert contest(closed, claims, NORMAL_SCORES, draws=99)[0].seeds == (1, 2, 3)


def test_twins_and_controls_without_claims_have_no_part():
    cells = world(np.random.default_rng(3), loss=0.2)
    worth, claims = tables(cells)
    control = worth.filter(pl.col("partner") == "ner").with_columns(
        partner=pl.lit("control"), worth=pl.col("worth") * 5
    )
    assert contest(pl.concat([worth, control]), claims, draws=99)[0] == contest(worth, claims, draws=99)[0]


def test_units_by_hand():
    worth = np.array([[1.0, np.e, np.e**2, np.e**3]])
    assert logs(worth) == pytest.approx(np.array([[0, 1, 2, 3]]))
    assert standardised_logs(worth) == pytest.approx(np.array([[-1.5, -0.5, 0.5, 1.5]]) / np.sqrt(1.25))
    assert standardised_logs(7 * worth**3) == pytest.approx(standardised_logs(worth))
    assert STANDARDISED_POINTS.scaled(logs(worth)) == pytest.approx(standardised_logs(worth))
    tied = normal_scores(np.array([-3.0, 0.0, 0.0, 8.0]))
    assert tied[1] == tied[2] == pytest.approx(0)
    assert tied[3] == pytest.approx(-tied[0]) == pytest.approx(0.8416, abs=1e-4)
    for unit in (STANDARDISED_LOGS, STANDARDISED_POINTS):
        with pytest.raises(ValueError, match="all heads of a run have the same"):
            unit.scaled(np.ones((2, 4)))
    with pytest.raises(ValueError, match="measure the run again"):
        STANDARDISED_POINTS.scaled(np.array([1.0, np.nan]))


def test_the_share_of_worth_lost_is_what_was_planted_without_noise():
    """In standardised logs whatever the spread of each run; in skill by a head's own skill."""
    for kind in ("plain", "a partner sharpens"):
        cells = world(np.random.default_rng(5), kind, loss=0.25, noise=0.0)
        assert estimate_contest(cells, draws=99).share == pytest.approx(0.25, abs=0.03)
    flat = tuple(TaskWorth(of.task, of.partners, np.ones_like(of.worth)) for of in cells.tasks)
    fallen = tuple(
        TaskWorth(
            of.task, of.partners,
            of.worth - 0.25 * np.array([cells.claims[u] & cells.claims[of.task] for u in of.partners]),
        )
        for of in flat
    )  # fmt: skip
    planted = replace(cells, tasks=tuple(fallen))
    found = estimate_contest(planted, SKILL_POINTS, draws=99)
    assert found.beta == pytest.approx(0.25)
    assert found.share == pytest.approx(0.25, rel=0.4)
