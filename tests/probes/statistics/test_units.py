"""Documents as units: their sums by hand, and intervals that cover where sentences of a document agree."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mtl.probes.statistics.compared_runs import (
    FEWEST_UNITS,
    compare_setups,
    percentile_interval,
    score_losses,
    units_of,
)
from mtl.tasks.metrics import share

WORLDS = 100


def world(
    rng: np.random.Generator, runs: int = 1, by_document: float = 0.4
) -> tuple[list[np.ndarray], list[str]]:
    """Right words of two setups that are equal on average, and differ by document.

    40 documents have 1 to 39 sentences. The counts of a setup are of (run, sentence, count). Several runs
    also differ by their skill; a closed head is compared within one run.
    """
    length = rng.integers(1, 40, 40)
    document = np.repeat(np.arange(40), length)
    words = rng.integers(5, 25, len(document))
    hard = rng.normal(1.6, 0.8, len(document))
    side = rng.normal(0, by_document, 40)[document] + rng.normal(0, 0.3, len(document))
    made, skill = [], 0.03 * (runs > 1)
    for sign in (0.5, -0.5):
        chance = 1 / (1 + np.exp(-hard - sign * side - rng.normal(0, skill, (runs, 1))))
        right = rng.binomial(words, chance)
        made.append(np.stack([right, np.broadcast_to(words, right.shape)], -1).astype(float))
    return made, [f"d{number}" for number in document]


def test_sums_are_those_of_loops() -> None:
    rng = np.random.default_rng(1)
    documents = [f"d{number}" for number in rng.integers(0, 12, 60)] + ["", ""]
    units = units_of(documents)
    counts = rng.integers(0, 9, (3, len(documents), 2))
    assert (units.name, units.count, units.documents) == ("documents", 14, 12)
    names = list(dict.fromkeys(name or place for place, name in enumerate(documents)))
    for number, name in enumerate(names):
        own = [place for place, other in enumerate(documents) if (other or place) == name]
        assert (units.sums(counts)[:, number] == counts[:, own].sum(1)).all()
    assert units.described() == "12 documents, and 2 sentences without one"
    sizes = np.array([documents.count(name) if isinstance(name, str) else 1 for name in names], float)
    assert units.effective == pytest.approx((sizes**2).sum() ** 2 / (sizes**4).sum())
    assert units_of([str(number // 3) for number in range(60)]).effective == pytest.approx(20)


@pytest.mark.parametrize(
    ("documents", "why"),
    [
        ([""] * 30, "does not say which document"),
        (["a", "b", "c"] * 10, "they are from 3 documents, too few"),
        ([str(number) for number in range(30)], "each from a document of its own"),
    ],
)
def test_sentences_are_the_units_where_documents_cannot_be(documents: list[str], why: str) -> None:
    units = units_of(documents)
    assert (units.name, units.count) == ("sentences", 30)
    assert why in units.described()
    counts = np.arange(60).reshape(30, 2)
    assert units.sums(counts) is counts


def test_intervals_of_ablation_cover_over_documents_and_not_over_sentences() -> None:
    rng = np.random.default_rng(2)
    covered = {"documents": 0, "sentences": 0}
    rejected = 0
    for number in range(WORLDS):
        (one, other), documents = world(rng)
        units = units_of(documents)
        of_documents = score_losses(
            units.sums(one[0]), units.sums(other), share, effective=units.effective, draws=300, seed=number
        )
        of_sentences = score_losses(one[0], other, share, draws=50, seed=number)
        covered["documents"] += of_documents.low[0] <= 0 <= of_documents.high[0]
        covered["sentences"] += of_sentences.low[0] <= 0 <= of_sentences.high[0]
        rejected += of_documents.p[0] <= 0.05
    assert covered["documents"] >= stats.binom.ppf(0.0015, WORLDS, 0.95)
    assert covered["sentences"] < stats.binom.ppf(1e-6, WORLDS, 0.95)
    assert rejected <= stats.binom.ppf(0.9985, WORLDS, 0.05)


def test_comparisons_of_setups_cover_over_documents_and_not_over_sentences() -> None:
    rng = np.random.default_rng(3)
    covered = {"documents": 0, "sentences": 0}
    for number in range(WORLDS):
        (one, other), documents = world(rng, runs=3)
        units = units_of(documents)
        sides = units.sums(one), units.sums(other)
        low, high = compare_setups(*sides, share, effective=units.effective, draws=300, seed=number).both
        covered["documents"] += low <= 0 <= high
        low, high = compare_setups(one, other, share, draws=50, seed=number).both
        covered["sentences"] += low <= 0 <= high
    assert covered["documents"] >= stats.binom.ppf(0.0015, WORLDS, 0.93)
    assert covered["sentences"] < stats.binom.ppf(1e-6, WORLDS, 0.95)


@pytest.mark.parametrize("units", [FEWEST_UNITS, 20])
def test_intervals_over_few_sentences_cover(units: int) -> None:
    rng = np.random.default_rng(4)
    worlds, covered = 400, 0
    for number in range(worlds):
        base, changed = (np.stack([rng.normal(0, 1, units), np.ones(units)], 1) for _ in range(2))
        found = score_losses(base, changed[None], _mean, draws=400, seed=number)
        covered += found.low[0] <= 0 <= found.high[0]
    assert stats.binom.ppf(0.0015, worlds, 0.94) <= covered <= stats.binom.ppf(0.9985, worlds, 0.96)


def _mean(counts: np.ndarray) -> np.ndarray:
    return counts[:, 0] / counts[:, 1]


def test_fewer_units_and_equal_resamples_have_no_interval() -> None:
    resampled = np.random.default_rng(5).normal(size=(2, 100))
    assert np.isnan(percentile_interval(resampled, FEWEST_UNITS - 1, 0.95)).all()
    low, high = percentile_interval(np.stack([resampled[0], np.full(100, 3.0)]), 30, 0.95)
    assert low[0] < high[0]
    assert np.isnan([low[1], high[1]]).all()
    counts = np.random.default_rng(6).integers(1, 5, (3, FEWEST_UNITS - 1, 2)).astype(float)
    compared = compare_setups(counts, counts[:2], share, draws=50)
    assert np.isnan([*compared.sentences, *compared.both, compared.p]).all()
    assert np.isfinite([*compared.seeds, compared.p_sentences]).all()
