"""Drawn labels depend on the word form alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from mtl.tasks.sentence import Sentence
from mtl.tasks.structured import Drawn

WORDS = tuple(f"w{number}" for number in range(4000))


def test_a_word_has_the_same_label_everywhere_and_labels_are_equally_frequent() -> None:
    task = Drawn(classes=10)
    counts = Counter(map(task.label, WORDS))
    assert set(counts) == set(task.labels([]).names) == set(map(str, range(10)))
    # 400 expected; a binomial's standard deviation is 19.
    assert max(abs(count - 400) for count in counts.values()) < 5 * 19
    assert task.label("dog") == Drawn(classes=10).label("dog")
    assert task.label("dog") != task.label("Dog") or task.label("cat") != task.label("Cat")


def test_another_draw_gives_labels_that_have_nothing_to_do_with_these() -> None:
    first, second = Drawn(classes=10), Drawn(classes=10, draw=2)
    agreeing = sum(first.label(word) == second.label(word) for word in WORDS)
    assert abs(agreeing - 400) < 5 * 19


def test_targets_and_scores_are_those_of_the_words() -> None:
    task, sentence = Drawn(classes=3), Sentence(("the", "dog", "saw", "the", "cat"))
    labels = task.labels([sentence])
    [names] = task.targets(sentence, labels)
    gold = tuple(labels[index] for index in names.tolist())
    assert gold == tuple(map(task.label, sentence.words))
    assert gold[0] == gold[3]
    metric = task.metric()
    metric.update([gold], [sentence])
    assert metric.compute() == {"accuracy": 100.0}
    wrong = (str((int(gold[0]) + 1) % 3), *gold[1:])
    metric.update([wrong], [sentence])
    assert metric.compute() == {"accuracy": 90.0}
    assert task.annotate(sentence, gold) == sentence


def test_every_sentence_is_annotated_and_no_pair_is() -> None:
    assert Drawn().annotated(Sentence(("a",)))
    assert not Drawn().annotated(Sentence(("a", "b"), second=1))


def test_its_decoder_scores_every_label() -> None:
    task = Drawn(classes=7)
    decoder = task.new_decoder(8, task.labels([]))
    assert decoder(torch.zeros(2, 3, 8), torch.ones(2, 3, dtype=torch.bool)).shape == (2, 3, 7)


def test_settings_that_give_other_labels_are_those_that_scores_are_compared_by() -> None:
    words = Sentence(tuple(f"word{number}" for number in range(50)))
    usual = Drawn()
    labels = [usual.label(word) for word in words.words]
    for field, other in (("classes", 41), ("draw", 2), ("dropout", 0.5)):
        changed = replace(usual, **{field: other})
        differs = [changed.label(word) for word in words.words] != labels
        assert differs == (field in Drawn.scored_by), field
