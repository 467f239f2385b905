"""Entities: loss, decoding, and scores against conlleval's."""

from __future__ import annotations

import pytest
import torch

from mtl.tasks.decoders.spans import NerDecoder
from mtl.tasks.metrics import SpanScores
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.structured import Ner
from mtl.tasks.task import Labels

SENTENCES = [
    Sentence(tuple("abcd"), entities=(Span(0, 2, "PER"), Span(3, 4, "LOC"))),
    Sentence(tuple("ab"), entities=()),
    Sentence(tuple("abcde"), entities=(Span(1, 5, "ORG"),)),
]
MASK = torch.tensor([[True] * len(sentence) + [False] * (5 - len(sentence)) for sentence in SENTENCES])
TASK = Ner(dim=12, dropout=0.0)
LABELS = TASK.labels(SENTENCES)


def _decoder(labels: Labels = LABELS) -> NerDecoder:
    torch.manual_seed(0)
    decoder = TASK.new_decoder(8, labels)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return decoder


@pytest.mark.parametrize("labels", [LABELS, Labels(["LOC", "PER"])])
def test_loss_is_a_cross_entropy_per_span(labels: Labels) -> None:
    """Over every span, with "no entity" as a class of score 0; a span of an unseen type does not count."""
    decoder = _decoder(labels)
    scores = decoder(torch.randn(3, 5, 8), MASK)
    batch = TASK.collate([TASK.targets(sentence, labels) for sentence in SENTENCES], 5)
    losses = decoder.loss(scores, batch, MASK)
    for row, sentence in enumerate(SENTENCES):
        gold = {(start, end): label for start, end, label in sentence.entities or ()}
        expected = 0.0
        for start in range(len(sentence)):
            for end in range(start + 1, len(sentence) + 1):
                classes = torch.cat([torch.zeros(1), scores[row, start, end - 1]]).log_softmax(0)
                label = gold.get((start, end))
                if label is None:
                    expected -= classes[0].item()
                elif label in labels.names:
                    expected -= classes[1 + labels.index(label)].item()
        assert losses[row].item() == pytest.approx(expected, rel=1e-4)


def test_a_fresh_decoder_is_not_swamped_by_spans() -> None:
    """150 words have 11,325 spans; their loss starts below a nat per word, with nothing predicted."""
    task = Ner()
    decoder = task.new_decoder(16, LABELS).eval()
    mask = torch.ones(1, 150, dtype=torch.bool)
    scores = decoder(torch.randn(1, 150, 16), mask)
    batch = task.collate([task.targets(Sentence(("x",) * 150, entities=()), LABELS)], 150)
    assert decoder.loss(scores, batch, mask).item() < 150
    assert decoder.decode(scores, mask) == [()]


def test_span_scores_are_those_of_spans_one_by_one() -> None:
    """Biaffine in the ends, plus the mean over the words of each one's score."""
    decoder = _decoder()
    words = torch.randn(2, 5, 8)
    scores = decoder(words, torch.ones(2, 5, dtype=torch.bool))
    first, last = decoder.mlp(words).chunk(2, 2)
    ends = decoder.biaffine(first, last)
    for start in range(5):
        for end in range(start + 1, 6):
            expected = ends[:, start, end - 1] + (words[:, start:end] @ decoder.word.T).mean(1)
            torch.testing.assert_close(scores[:, start, end - 1], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.9])
def test_a_span_is_taken_from_the_threshold_on(threshold: float) -> None:
    decoder = Ner(threshold=threshold).new_decoder(8, Labels(["PER"]))
    mask = torch.ones(1, 1, dtype=torch.bool)
    for probability in (threshold - 0.01, threshold + 0.01):
        scores = torch.tensor(probability).logit().view(1, 1, 1, 1)
        assert len(decoder.decode(scores, mask)[0]) == (probability > threshold)
    with pytest.raises(ValueError, match="not a probability"):
        Ner(threshold=threshold + 1)


def test_decoding_takes_the_best_type_and_never_overlaps() -> None:
    decoder = _decoder()
    scores = torch.full((1, 4, 4, 3), -1.0)
    scores[0, 0, 2, 1] = 3.0
    scores[0, 0, 0, 0] = 2.0
    scores[0, 1, 3, 2] = 1.5
    scores[0, 1, 3, 0] = 1.0
    mask = torch.ones(1, 4, dtype=torch.bool)
    assert decoder.decode(scores, mask) == [(Span(0, 1, "LOC"), Span(1, 4, "PER"))]


def test_overlapping_entities_are_counted() -> None:
    sentence = Sentence(tuple("abcd"), entities=(Span(0, 1, "PER"), Span(0, 3, "ORG"), Span(3, 4, "GPE")))
    assert TASK.dropped(sentence, LABELS) == 2
    assert TASK.dropped(Sentence(("a",)), LABELS) == 0
    assert TASK.targets(sentence, LABELS).lasts.tolist() == [2, 3]
    with pytest.raises(ValueError, match="not within"):
        TASK.targets(Sentence(("a",), entities=(Span(0, 2, "PER"),)), LABELS)


def test_no_types_at_all() -> None:
    labels = Labels(())
    decoder = TASK.new_decoder(8, labels)
    scores = decoder(torch.randn(3, 5, 8), MASK)
    batch = TASK.collate([TASK.targets(Sentence(tuple("ab"), entities=()), labels)] * 3, 5)
    decoder.loss(scores, batch, MASK).sum().backward()
    assert decoder.decode(scores, MASK) == [(), (), ()]


def test_scores_are_those_of_conlleval() -> None:
    """The program on these two sentences: 66.67 / 50.00 / 57.14; LOC 100.00, ORG 0.00, PER 50.00."""
    gold = [
        Sentence(tuple("abcde"), entities=(Span(0, 2, "PER"), Span(3, 4, "LOC"))),
        Sentence(tuple("abc"), entities=(Span(0, 1, "PER"), Span(2, 3, "PER"))),
        Sentence(tuple("not annotated")),
    ]
    predicted = [(Span(0, 2, "ORG"), Span(3, 4, "LOC")), (Span(0, 1, "PER"),), (Span(0, 1, "PER"),)]
    whole = SpanScores("entities")
    whole.update(predicted, gold)
    scores = whole.compute()
    rounded = {name: round(value, 2) for name, value in scores.items()}
    assert rounded == {
        "precision": 66.67,
        "recall": 50.0,
        "f1": 57.14,
        "f1/LOC": 100.0,
        "f1/ORG": 0.0,
        "f1/PER": 50.0,
    }
    parts = SpanScores("entities")
    for guess, sentence in zip(predicted, gold, strict=True):
        parts.update([guess], [sentence])
    assert parts.compute() == scores


def test_ranks_that_met_different_types_add_up() -> None:
    """What torchmetrics does over ranks: sums are added, lists joined."""
    gold = [Sentence(("a",), entities=(Span(0, 1, name),)) for name in ("PER", "WORK_OF_ART", "PER")]
    first, second, whole = SpanScores("entities"), SpanScores("entities"), SpanScores("entities")
    first.update([(Span(0, 1, "PER"),)], gold[:1])
    second.update([(), ()], gold[1:])
    whole.update([(Span(0, 1, "PER"),), (), ()], gold)
    first.counts += second.counts
    first.records = torch.cat([*first.records, *second.records])
    assert first.compute() == whole.compute()
    assert set(whole.compute()) == {"precision", "recall", "f1", "f1/PER", "f1/WORK_OF_ART"}
