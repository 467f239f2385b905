"""The classifier over sentences; the one over words is tested as POS."""

from __future__ import annotations

import torch
from torch.nn import functional

from mtl.tasks.decoders.classifier import SentenceClassifier, collate_sentences, label_targets
from mtl.tasks.metrics import Accuracy
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import UNKNOWN, Labels

LABELS = Labels(["no", "yes"])
MASK = torch.arange(5) < torch.tensor([[5], [2], [1]])


def test_the_loss_is_that_of_mean_vectors_and_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    decoder = SentenceClassifier(4, LABELS, 0.3).eval()
    words = torch.randn(3, 5, 4)
    batch = collate_sentences([label_targets([name], LABELS) for name in ("yes", "no", "maybe")])
    assert batch.labels.tolist() == [1, 0, UNKNOWN]
    losses = decoder.loss(decoder(words, MASK), batch, MASK)
    for row, length in enumerate((5, 2)):
        scores = decoder.classifier(words[row, :length].mean(0))
        torch.testing.assert_close(losses[row], functional.cross_entropy(scores, batch.labels[row]))
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
