"""Scores of classes and of numbers, against scikit-learn and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from mtl.tasks.metrics import Classes, ClassScores, Correlation
from mtl.tasks.sentence import Sentence

SCORES = ("accuracy", "f1", "matthews")


def sentences(task: str, values) -> list[Sentence]:
    return [Sentence(("x",), {task: value}) for value in values]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_classes_against_scikit_learn(classes, seed) -> None:
    random = np.random.default_rng(seed)
    inventory = [f"c{index}" for index in range(classes)]
    gold = random.integers(classes, size=60)
    guess = np.where(random.random(60) < 0.4, gold, random.integers(classes, size=60))
    metric = Classes("mnli", inventory, SCORES, "f1")
    for part in (slice(0, 7), slice(7, 60)):
        named = [inventory[index] for index in gold[part]]
        metric.update([inventory[index] for index in guess[part]], sentences("mnli", named))
    last = classes - 1
    assert metric.compute() == pytest.approx(
        {
            "accuracy": 100 * accuracy_score(gold, guess),
            "f1": 100 * f1_score(gold == last, guess == last),
            "matthews": 100 * matthews_corrcoef(gold, guess),
        },
        abs=1e-4,
    )


@pytest.mark.parametrize("seed", range(5))
def test_classes_of_any_names_against_scikit_learn(seed: int) -> None:
    random = np.random.default_rng(seed)
    gold, guess = (
        list(random.choice(["yes", "né", "a b", ""], size=40, p=[0.6, 0.2, 0.1, 0.1])) for _ in range(2)
    )
    metric = ClassScores("own")
    for part in (slice(0, 7), slice(7, 40)):
        metric.update(guess[part], [*sentences("own", gold[part])])
    metric.update(["yes"], [Sentence(("x",))])  # not annotated
    assert metric.compute() == pytest.approx(
        {
            "accuracy": 100 * accuracy_score(gold, guess),
            "macro_f1": 100 * f1_score(gold, guess, average="macro"),
        }
    )


@pytest.mark.parametrize(
    ("gold", "guess"),
    [
        ("0101", "1111"),
        ("1111", "0101"),
        ("0111", "1111"),
        ("1111", "0111"),
        ("11", "11"),
        ("11", "00"),
        ("", ""),
    ],
)
def test_what_is_undefined_is_zero(gold, guess) -> None:
    metric = Classes("cola", ("0", "1"), ("matthews",), "matthews")
    metric.update(list(guess), sentences("cola", gold))
    assert metric.compute() == {"matthews": 0.0}
    assert metric.score(metric.counts.numpy()[None] * 1.0) == 0.0


@pytest.mark.parametrize("main", SCORES)
@pytest.mark.parametrize("classes", [2, 3])
def test_scores_of_many_draws_are_those_of_each(main, classes) -> None:
    """What `compute` gives for the sentences of a draw, `score` gives for the sum of their counts."""
    random = np.random.default_rng(0)
    inventory = [f"c{index}" for index in range(classes)]
    gold, guess = (random.integers(classes, size=40) for _ in range(2))
    guess[:20] = gold[:20]
    labelled = sentences("mnli", [inventory[index] for index in gold])
    named = [inventory[index] for index in guess]
    counts = Classes("mnli", inventory, SCORES, main).sentence_counts(named, labelled)
    draws = random.integers(0, 40, size=(6, 40))
    scores = Classes("mnli", inventory, SCORES, main).score(counts[draws].sum(1) * 1.0)
    for draw, score in zip(draws, scores, strict=True):
        metric = Classes("mnli", inventory, SCORES, main)
        metric.update([named[index] for index in draw], [labelled[index] for index in draw])
        assert metric.compute()[main] == pytest.approx(score, abs=1e-4)


def test_pearson_of_many_draws() -> None:
    random = np.random.default_rng(0)
    gold = random.integers(0, 26, size=40) / 5
    guess = (gold + random.normal(size=40)).tolist()
    labelled = sentences("stsb", gold.tolist())
    counts = Correlation("stsb").sentence_counts(guess, labelled)
    draws = random.integers(0, 40, size=(6, 40))
    scores = Correlation("stsb").score(counts[draws].sum(1))
    for draw, score in zip(draws, scores, strict=True):
        expected = scipy.stats.pearsonr(gold[draw], np.array(guess)[draw])[0]
        assert score == pytest.approx(100 * expected, abs=1e-6)
    equal = Correlation("stsb").sentence_counts([0.1] * 3, sentences("stsb", [0.3, 0.4, 0.7]))
    assert Correlation("stsb").score(equal.sum(0, keepdims=True)) == 0.0
    assert Correlation("stsb").score(np.zeros((1, 6))) == 0.0


def test_sentences_of_other_tasks_do_not_count() -> None:
    metric = Classes("cola", ("0", "1"), ("accuracy",), "accuracy")
    metric.update(["0", "1"], [*sentences("cola", ["0"]), *sentences("sst2", ["0"])])
    assert metric.compute() == {"accuracy": 100.0}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_correlation_against_scipy(scale) -> None:
    random = np.random.default_rng(0)
    gold = random.integers(0, 26, size=80) / 5  # with ties, as STS-B's
    guess = (gold + random.normal(size=80)) * scale
    guess[:5] = guess[0]
    metric = Correlation("stsb")
    for part in (slice(0, 1), slice(1, 80)):
        metric.update(guess[part].tolist(), sentences("stsb", gold[part].tolist()))
    assert metric.compute() == pytest.approx(
        {
            "pearson": 100 * scipy.stats.pearsonr(gold, guess)[0],
            "spearman": 100 * scipy.stats.spearmanr(gold, guess)[0],
        },
        abs=1e-4,
    )


@pytest.mark.parametrize(
    ("gold", "guess"), [([], []), ([1.0], [2.0]), ([1.0, 2.0], [3.0, 3.0]), ([1.0, 1.0], [2.0, 3.0])]
)
def test_correlation_without_variance_is_zero(gold, guess) -> None:
    metric = Correlation("stsb")
    metric.update(guess, sentences("stsb", gold))
    assert metric.compute() == {"pearson": 0.0, "spearman": 0.0}


def test_ranks_add_up() -> None:
    """What torchmetrics does to the states of several processes: sums, and one list after the other."""
    shares = [Classes("cola", ("0", "1"), SCORES, "f1") for _ in range(3)]
    whole = Classes("cola", ("0", "1"), SCORES, "f1")
    for rank, share in enumerate(shares[:2]):
        guess, gold = ["0", "1", "1"], sentences("cola", "011" if rank else "101")
        share.update(guess, gold)
        whole.update(guess, gold)
    total = sum((share.counts for share in shares), torch.zeros(4, dtype=torch.long))
    assert total.tolist() == whole.counts.tolist()
    assert set(whole._reductions) == {"counts"}
    assert [reduce.__name__ for reduce in whole._reductions.values()] == ["dim_zero_sum"]
    assert [reduce.__name__ for reduce in Correlation("stsb")._reductions.values()] == ["dim_zero_cat"] * 2
