"""Classifiers and vectors of sentences, against plain loops; the classifier over words is tested as POS."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mtl.tasks.decoders.classifier import (
    SentenceClassifier,
    SentencePooling,
    SentenceRegressor,
    SentenceTarget,
    sentence_target,
)
from mtl.tasks.metrics import Accuracy
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import UNKNOWN, Labels

LABELS = Labels(["no", "yes"])
LENGTHS = (5, 2, 1)
MASK = torch.arange(5) < torch.tensor(LENGTHS)[:, None]


def test_the_loss_is_that_of_mean_vectors_and_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    decoder = SentenceClassifier(4, LABELS, 0.3).eval()
    words = torch.randn(3, 5, 4)
    batch = SentenceTarget.collate(
        [sentence_target(LABELS.index(name)) for name in ("yes", "no", "maybe")], 5
    )
    assert batch.values.tolist() == [1, 0, UNKNOWN]
    losses = decoder.loss(decoder(words, MASK), batch, MASK)
    for row, length in enumerate((5, 2)):
        scores = decoder.classifier(words[row, :length].mean(0))
        torch.testing.assert_close(losses[row], functional.cross_entropy(scores, batch.values[row]))
    assert losses[2] == 0
    words[~MASK] = torch.inf
    torch.testing.assert_close(decoder.loss(decoder(words, MASK), batch, MASK), losses)


def test_decoding_takes_the_best_label_and_accuracy_counts_sentences() -> None:
    decoder = SentenceClassifier(2, LABELS, 0.0).eval()
    with torch.no_grad():
        decoder.classifier.weight.copy_(torch.eye(2))
        decoder.classifier.bias.zero_()
    words = torch.tensor([[[3.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [9.0, 0.0]]])
    mask = torch.tensor([[True, True], [True, False]])
    labels = decoder.decode(decoder(words, mask), mask)
    assert labels == ["no", "yes"]
    metric = Accuracy("intent")
    metric.update(labels, [Sentence(("a", "b"), intent="no"), Sentence(("a",), intent="no")])
    assert metric.compute() == {"accuracy": 50.0}


def test_mean_first_and_attention() -> None:
    torch.manual_seed(0)
    words = torch.randn(3, 5, 4)
    attention = SentencePooling(4, "attention")
    torch.testing.assert_close(attention(words, MASK), SentencePooling(4, "mean")(words, MASK))
    attention.query.data.normal_()
    for row, length in enumerate(LENGTHS):
        inside = words[row, :length]
        torch.testing.assert_close(SentencePooling(4, "mean")(words, MASK)[row], inside.mean(0))
        torch.testing.assert_close(SentencePooling(4, "first")(words, MASK)[row], inside[0])
        weights = torch.exp(inside @ attention.query)
        expected = (weights[:, None] * inside).sum(0) / weights.sum()
        torch.testing.assert_close(attention(words, MASK)[row], expected)


@pytest.mark.parametrize("kind", ["mean", "first", "attention"])
def test_padding_changes_no_vector(kind) -> None:
    torch.manual_seed(0)
    pooling = SentencePooling(4, kind)
    words = torch.randn(3, 5, 4)
    expected = pooling(words, MASK)
    words[~MASK] = torch.inf
    torch.testing.assert_close(pooling(words, MASK), expected)


def test_the_query_learns() -> None:
    pooling = SentencePooling(4, "attention")
    torch.manual_seed(0)
    pooling(torch.randn(3, 5, 4), MASK).square().sum().backward()
    assert pooling.query.grad.abs().min() > 0


def test_only_the_first_pooling_reads_the_first_token() -> None:
    for kind in ("mean", "first", "attention"):
        assert SentenceClassifier(4, LABELS, 0.1, kind).reads_first == (kind == "first")
        assert SentenceRegressor(4, 0.1, kind).reads_first == (kind == "first")


def test_regression_is_squared_error_on_a_number() -> None:
    torch.manual_seed(0)
    decoder = SentenceRegressor(4, 0.3).eval()
    words = torch.randn(3, 5, 4)
    batch = SentenceTarget.collate([sentence_target(number) for number in (0.5, 4.0, -100.0)], 5)
    scores = decoder(words, MASK)
    losses = decoder.loss(scores, batch, MASK)
    for row, (length, gold) in enumerate(zip(LENGTHS, (0.5, 4.0, -100.0), strict=True)):
        number = decoder.classifier(words[row, :length].mean(0))[0]
        torch.testing.assert_close(losses[row], (number - gold) ** 2)
    assert decoder.decode(scores + 1000, MASK) == (scores + 1000).tolist()  # not clipped


def test_labels_of_the_decoders_are_named() -> None:
    decoder = SentenceClassifier(4, LABELS, 0.0, "attention")
    assert set(decoder.state_dict()) == {"classifier.weight", "classifier.bias", "pooling.query"}
