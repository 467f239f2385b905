"""Attachment scores without punctuation against supar's own count."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mtl.tasks.dep import Dep
from mtl.tasks.metrics.attachment import is_punctuation
from mtl.tasks.sentence import Arcs, Sentence

WORDS = ("go", ".", "``", "--", "$", "+", "...", "a.", "’", "«", "50%", "%", ":-)", "^", "。", "_", "…")
RELATIONS = ("nsubj", "punct", "punct:x", "root", "obl", "obl:tmod")


def test_what_is_punctuation_is_what_supar_takes_for_it() -> None:
    from supar.utils.fn import ispunct

    assert [is_punctuation(word) for word in WORDS] == [ispunct(word) for word in WORDS]
    assert not is_punctuation("$")
    assert is_punctuation("%")


@pytest.mark.parametrize("punct", [True, False])
def test_scores_are_those_that_supar_counts(punct: bool) -> None:
    from supar.utils.fn import ispunct
    from supar.utils.metric import AttachmentMetric

    generator = np.random.default_rng(0)
    gold, predicted = [], []
    for length in generator.integers(1, 12, size=40).tolist():
        words = tuple(generator.choice(WORDS, length).tolist())
        draws = [
            Arcs(
                tuple(generator.integers(0, 3, length).tolist()),
                tuple(generator.choice(RELATIONS, length).tolist()),
            )
            for _ in range(2)
        ]
        gold.append(Sentence(words, arcs=draws[0]))
        predicted.append(draws[1])
    metric, theirs = Dep(punct=punct).metric(), AttachmentMetric()
    metric.update(predicted, gold)
    for guess, sentence in zip(predicted, gold, strict=True):
        assert sentence.arcs is not None
        numbers = [
            torch.tensor([column])
            for arcs in (guess, sentence.arcs)
            for column in (arcs.heads, [RELATIONS.index(name) for name in arcs.relations])
        ]
        mask = torch.tensor([[punct or not ispunct(word) for word in sentence.words]])
        theirs(numbers[0], numbers[1], numbers[2], numbers[3], mask)
    scores = metric.compute()
    assert scores["uas"] == pytest.approx(100 * theirs.uas)
    assert scores["las_subtypes"] == pytest.approx(100 * theirs.las)
    assert scores["las"] > scores["las_subtypes"]
    counts = metric.sentence_counts(predicted, gold).sum(0, keepdims=True).astype(float)
    assert metric.score(counts)[0] == pytest.approx(scores["las"])


def test_punctuation_is_told_by_the_form_alone() -> None:
    """A symbol with the relation `punct` counts; a full stop never does, whatever hangs from it."""
    gold = [Sentence(("a", "+", "."), arcs=Arcs((0, 1, 1), ("root", "punct", "obj")))]
    metric = Dep(punct=False).metric()
    metric.update([Arcs((3, 1, 0), ("dep", "punct", "root"))], gold)
    assert metric.compute() == {"uas": 50.0, "las": 50.0, "las_subtypes": 50.0}
