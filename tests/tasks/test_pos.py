"""Tagging: loss, decoding, accuracy."""

from __future__ import annotations

import pytest
import torch

from mtl.tasks.sentence import Sentence
from mtl.tasks.structured import Pos
from mtl.tasks.task import UNKNOWN, Labels

SENTENCES = [
    Sentence(("We", "ate", "."), tags=("PRP", "VBD", "."), upos=("PRON", "VERB", "PUNCT")),
    Sentence(("Go",), tags=("VB",), upos=("VERB",)),
]
MASK = torch.tensor([[True, True, True], [True, False, False]])


def test_labels_and_targets() -> None:
    task = Pos()
    labels = task.labels([*SENTENCES, Sentence(("x",))])
    assert labels.names == (".", "PRP", "VB", "VBD")
    known = Labels(["PRP", "VB"])
    batch = task.collate([task.targets(sentence, known) for sentence in SENTENCES], 3)
    assert batch.labels.tolist() == [[0, UNKNOWN, UNKNOWN], [1, UNKNOWN, UNKNOWN]]
    assert not task.annotated(Sentence(("x",)))
    with pytest.raises(ValueError, match="no tags"):
        task.targets(Sentence(("x",)), labels)


@pytest.mark.parametrize("inventory", ["tags", "upos"])
def test_loss_is_that_of_words_one_by_one(inventory: str) -> None:
    torch.manual_seed(0)
    task = Pos(inventory)
    labels = Labels(task.labels(SENTENCES).names[:-1])
    decoder = task.new_decoder(6, labels).eval()
    scores = decoder(torch.randn(2, 3, 6), MASK)
    batch = task.collate([task.targets(sentence, labels) for sentence in SENTENCES], 3)
    losses = decoder.loss(scores, batch, MASK)
    for row, sentence in enumerate(SENTENCES):
        expected = 0.0
        for word, tag in enumerate(getattr(sentence, inventory)):
            if tag in labels.names:
                expected -= scores[row, word].log_softmax(0)[labels.index(tag)].item()
        assert losses[row].item() == pytest.approx(expected)


def test_the_inventory_is_what_is_annotated() -> None:
    assert Pos().annotate(Sentence(("Go",)), ("VB",)).tags == ("VB",)
    assert Pos("upos").annotate(Sentence(("Go",)), ("VERB",)).upos == ("VERB",)


def test_accuracy() -> None:
    metric = Pos().metric()
    metric.update([("PRP", "VB", ".")], SENTENCES[:1])
    metric.update([("VB",), ("NN",)], [SENTENCES[1], Sentence(("not", "annotated"))])
    assert metric.compute() == {"accuracy": 75.0}
    metric.reset()
    metric.update([("NN",)], [Sentence(("not",))])
    assert metric.compute() == {"accuracy": 0.0}
