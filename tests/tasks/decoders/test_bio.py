"""Spans as BIO tags: against all tag sequences one by one, and tags that are spelt in other ways."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from mtl.config.instances import tasks_saved
from mtl.tasks.decoders.decoder import Decoder
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.spans import spans_of, spelling_of, tags_of
from mtl.tasks.structured import Ner, OwnTags
from mtl.tasks.task import Labels, instance

LABELS = Labels(["LOC", "PER"])
NER = Ner(decoder="bio", dropout=0.0)
WORDS = 4
MASK = torch.ones(1, WORDS, dtype=torch.bool)


def _random(decoder: Decoder) -> Decoder:
    torch.manual_seed(0)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return decoder.double().eval()


def _sequences() -> list[tuple[int, ...]]:
    """All tag sequences of the sentence in which an I continues a span of its type."""
    found = []
    for tags in product(range(5), repeat=WORDS):
        pairs = zip((0, *tags), tags, strict=False)
        if all(tag <= 2 or before in (tag, tag - 2) for before, tag in pairs):
            found.append(tags)
    return found


def _spans(tags: tuple[int, ...]) -> tuple[Span, ...]:
    return spans_of([("O", "B-LOC", "B-PER", "I-LOC", "I-PER")[tag] for tag in tags])


def test_everything_is_that_of_all_sequences_one_by_one() -> None:
    decoder = _random(NER.new_decoder(8, LABELS)).requires_grad_(False)
    scores = decoder(torch.randn(1, WORDS, 8).double(), MASK).detach()
    sequences, lengths = _sequences(), torch.tensor([WORDS])
    paths = torch.tensor(sequences)
    totals = decoder.crf.path_score(scores.expand(len(paths), -1, -1), paths, lengths.expand(len(paths)))
    best = _spans(sequences[int(totals.argmax())])
    assert decoder.decode(scores, MASK) == [best]

    for gold in (best, (), (Span(0, 1, "PER"), Span(1, 4, "PER"))):
        sentence = Sentence(("x",) * WORDS, entities=gold)
        batch = NER.collate([NER.targets(sentence, LABELS)], WORDS)
        place = next(number for number, tags in enumerate(sequences) if _spans(tags) == gold)
        torch.testing.assert_close(
            decoder.loss(scores, batch, MASK), (totals.logsumexp(0) - totals[place])[None]
        )
        outside = totals[sequences.index((0,) * WORDS)]
        whole = decoder.structure_score(scores, batch, MASK)
        torch.testing.assert_close(whole.score, (totals[place] - outside)[None])
        assert whole.items.tolist() == [len(gold)]
        one = decoder.structure_score(scores, batch, MASK, LABELS.index("PER"))
        words = [(word, 2 + 2 * (word > s.start)) for s in gold if s.label == "PER" for word in range(*s[:2])]
        assert one.items.tolist() == [len(words)]
        assert one.score.item() == pytest.approx(float(sum(scores[0, word, tag] for word, tag in words)))

    chances = totals.softmax(0).tolist()
    asked = (Span(0, 2, "LOC"), Span(2, 3, "PER"), Span(3, 4, "LOC"))
    [items] = decoder.alternatives(scores, MASK, [asked], 3)
    for span, item in zip(asked, items, strict=True):
        expected = {
            label: sum(
                chance
                for tags, chance in zip(sequences, chances, strict=True)
                if Span(span.start, span.end, label) in _spans(tags)
            )
            for label in LABELS.names
        }
        expected["O"] = 1 - sum(expected.values())
        assert (item.kind, item.start, item.end) == ("span", span.start, span.end)
        assert dict(item.best) == pytest.approx(expected)


def test_spans_that_overlap_are_left_out_and_counted() -> None:
    sentence = Sentence(tuple("abcd"), entities=(Span(0, 1, "PER"), Span(0, 3, "LOC"), Span(3, 4, "ORG")))
    targets = NER.targets(sentence, LABELS)
    assert targets.tags.tolist() == [1, 3, 3, 0]  # the longer one; ORG is no type of training
    assert targets.labels.tolist() == [0, 0, 0, -100]
    assert NER.dropped(sentence, LABELS) == 2
    with pytest.raises(ValueError, match="not within"):
        NER.targets(Sentence(("a",), entities=(Span(0, 2, "PER"),)), LABELS)


CHUNKS = (Span(0, 1, "NP"), Span(1, 4, "VP"), Span(4, 6, "NP"))
SPELT = {
    "BIO": "B-NP B-VP I-VP I-VP B-NP I-NP O",
    "BIOES": "S-NP B-VP I-VP E-VP B-NP E-NP O",
    "BILOU": "U-NP B-VP I-VP L-VP B-NP L-NP O",
    "BMES": "S-NP B-VP M-VP E-VP B-NP E-NP O",
}


@pytest.mark.parametrize("scheme", SPELT)
def test_tags_are_learned_scored_as_spans_and_written_as_they_were(scheme: str) -> None:
    tags = tuple(SPELT[scheme].split())
    assert spans_of(tags) == CHUNKS
    assert tags_of(CHUNKS, 7, spelling_of(tags)) == tags
    made = OwnTags.with_settings({"scheme": "bio"})
    task = instance("chunks", made, "tags")(scheme="bio", dropout=0.0)
    sentences = [Sentence(tuple("abcdefg"), tags=tags), Sentence(tuple("hi"), tags=("O", "O"))]
    labels = task.labels(sentences)
    torch.manual_seed(1)
    decoder = task.new_decoder(8, labels)
    words, mask = torch.randn(2, 7, 8), torch.tensor([[True] * 7, [True] * 2 + [False] * 5])
    batch = task.collate([task.targets(sentence, labels) for sentence in sentences], 7)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        decoder.loss(decoder(words, mask), batch, mask).sum().backward()
        optimizer.step()
    with torch.inference_mode():
        scores = decoder(words, mask)
        decoded = decoder.decode(scores, mask)
        [items, _] = decoder.alternatives(scores, mask, decoded, 1)
    assert decoded == [sentence.tags for sentence in sentences]
    assert [task.annotate(s, found) for s, found in zip(sentences, decoded, strict=True)] == sentences
    assert [item.best[0].value for item in items] == SPELT["BIO"].split()
    wrong = [("O", *tags[1:]), ("O", "O")]  # misses one of three spans
    metric = task.metric()
    metric.update(wrong, sentences)
    assert metric.compute() == pytest.approx(
        {"precision": 100, "recall": 200 / 3, "f1": 80, "f1/NP": 200 / 3, "f1/VP": 100}
    )
    assert set(task.scores) == {"precision", "recall", "f1", "f1/"}
    whole = decoder.structure_score(scores, batch, mask, labels.index(tags[0]))
    assert whole.items.tolist() == [tags.count(tags[0]), 0]


def test_tags_that_encode_no_spans_are_refused() -> None:
    made = OwnTags.with_settings({"scheme": "bio"})
    assert made.fault(("O", "B-NP", "NN")) == (
        "'NN' is no tag of BIO or IOBES: use O, or B-, I-, E- or S-LABEL"
    )
    assert made.fault(("O", "I-NP", "L-NP")) is None
    assert OwnTags.with_settings({"scheme": "none"}).score == "accuracy"
    saved = {"tasks": {"x": {"scheme": "bio"}}, "instances": {"x": {"kind": "tags", "layer": "x"}}}
    assert tasks_saved(saved)["x"].score == "f1"
