"""Tasks on sentences: classes, numbers, what each takes."""

from __future__ import annotations

import math

import pytest
import torch

from mtl.tasks.catalogue import SENTENCE_TASKS, STRUCTURED
from mtl.tasks.sentence import Sentence
from mtl.tasks.sentence_tasks import Classify, Cola, Mnli, Mrpc, Regress, Stsb
from mtl.tasks.task import UNKNOWN, Labels

ONE = Sentence(("We", "ate"))
PAIR = Sentence(("We", "ate", "Go"), second=2)


def labelled(task: str, value: str | float) -> Sentence:
    return ONE.with_layers({task: value})


def test_classes_are_those_of_the_training_sentences_or_all_of_the_task() -> None:
    task = Classify()
    sentences = [labelled("classify", value) for value in ("yes", "no", "yes")]
    labels = task.labels([*sentences, ONE, labelled("cola", "1")])
    assert labels.names == ("no", "yes")
    batch = task.collate([task.targets(s, Labels(["yes"])) for s in sentences], 2)
    assert batch.values.tolist() == [0, UNKNOWN, 0]
    assert Cola().labels([labelled("cola", "1")]).names == ("0", "1")
    with pytest.raises(ValueError, match="no class of classify"):
        task.targets(ONE, labels)


def test_numbers_have_no_labels() -> None:
    task = Regress()
    sentences = [labelled("regress", value) for value in (1.5, 3)]
    labels = task.labels(sentences)
    assert len(labels) == 0
    batch = task.collate([task.targets(sentence, labels) for sentence in sentences], 2)
    torch.testing.assert_close(batch.values, torch.tensor([1.5, 3.0]))
    with pytest.raises(ValueError, match="has no regress"):
        task.targets(ONE, labels)


def test_each_task_takes_one_sentence_or_pairs() -> None:
    assert {name for name, task in SENTENCE_TASKS.items() if task().fits(ONE)} == {
        "cola", "sst2", "classify", "regress"
    }  # fmt: skip
    assert {name for name, task in SENTENCE_TASKS.items() if task().fits(PAIR)} == {
        "mrpc", "rte", "qnli", "mnli", "stsb", "classify", "regress"
    }  # fmt: skip
    assert all(task().fits(ONE) and not task().fits(PAIR) for task in STRUCTURED)


@pytest.mark.parametrize(
    ("task", "value", "fault"),
    [
        (Cola, "1", None),
        (Cola, "2", "'2' is none of 0, 1"),
        (Cola, 1, "1 is no name of a class"),
        (Mnli, "neutral", None),
        (Classify, "anything", None),
        (Stsb, 3, None),
        (Stsb, 2.5, None),
        (Stsb, "2.5", "'2.5' is no number from"),
        (Stsb, math.inf, "Infinity is no number from"),
        (Stsb, True, "true is no number from"),
    ],
)
def test_values_that_a_task_does_not_have(task, value, fault) -> None:
    found = task.fault(value)
    assert (found is None) if fault is None else found.startswith(fault)


def test_what_is_annotated_scores_100() -> None:
    for task, values in ((Mrpc(), ("0", "1", "1")), (Stsb(), (1.0, 2.0, 5.0)), (Classify(), ("a", "b", "a"))):
        gold = [task.annotate(PAIR, value) for value in values]
        assert [sentence.layers for sentence in gold] == [{task.name: value} for value in values]
        metric = task.metric()
        metric.update(list(values), gold)
        assert metric.compute() == pytest.approx(dict.fromkeys(task.scores, 100), abs=1e-3)
        assert task.loss_units(gold[0]) == 1
