"""Semantic roles: loss, decoding, and scores against those of srl-eval.pl."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from mtl.tasks.decoders.srl import SrlDecoder, predicate_places
from mtl.tasks.metrics import ArgumentScores
from mtl.tasks.sentence import Frame, Sentence, Span
from mtl.tasks.spans import split_frame_labels
from mtl.tasks.structured import Srl
from mtl.tasks.task import UNKNOWN, Labels

TWO = [
    Sentence(
        tuple("abcdef"),
        frames=(
            Frame(1, "x.01", (Span(0, 1, "A0"), Span(2, 4, "A1"), Span(5, 6, "C-A1"))),
            Frame(4, "y.02", (Span(2, 4, "A0"),)),
        ),
    ),
    Sentence(tuple("ab"), frames=()),
]
SENTENCES = [*TWO, Sentence(tuple("abc"), frames=(Frame(2, "z.01", ()),))]
MASK = torch.tensor([[True] * len(sentence) + [False] * (6 - len(sentence)) for sentence in SENTENCES])
TASK = Srl(dim=24, reach=3, dropout=0.0)
LABELS = TASK.labels(SENTENCES)


def _decoder(labels: Labels = LABELS) -> SrlDecoder:
    torch.manual_seed(0)
    decoder = TASK.new_decoder(8, labels)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return decoder


def _batch(sentences: list[Sentence], width: int):
    return TASK.collate([TASK.targets(sentence, LABELS) for sentence in sentences], width)


def test_labels_and_batch() -> None:
    assert LABELS.names == ("A0", "A1", "C-A1")
    batch = _batch(SENTENCES, 6)
    assert batch.rows.tolist() == [0, 0, 2]
    assert batch.predicates.tolist() == [1, 4, 2]
    assert batch.tags.tolist() == [[1, 0, 2, 5, 0, 3], [0, 0, 1, 4, 0, 0], [0] * 6]
    assert batch.is_predicate.tolist() == [[0, 1, 0, 0, 1, 0], [0] * 6, [0, 0, 1, 0, 0, 0]]
    with pytest.raises(ValueError, match="no frames"):
        TASK.targets(Sentence(("a",)), LABELS)


def test_tag_scores_are_those_of_pairs_one_by_one() -> None:
    decoder = _decoder()
    words = torch.randn(2, 6, 8)
    roles = decoder.roles
    rows, predicates = np.array([1, 0]), np.array([4, 0])
    places = map(torch.from_numpy, predicate_places(rows, predicates, 6, roles.reach))
    scores = roles(words, torch.from_numpy(rows), *places)
    for frame, (row, predicate) in enumerate([(1, 4), (0, 0)]):
        for word in range(6):
            distance = min(max(word - predicate, -3), 3)
            hidden = (
                roles.of_predicate(words[row, predicate])
                + roles.of_word(words[row, word])
                + roles.of_distance.weight[distance + 3]
            )
            expected = roles.output(functional.leaky_relu(hidden, 0.1))
            torch.testing.assert_close(scores[frame, word], expected)


def test_loss_is_the_sum_over_words_and_frames() -> None:
    """Each frame alone, unpadded, and each word's predicate decision; padding and order change nothing."""
    decoder = _decoder()
    words = torch.randn(3, 6, 8)
    losses = decoder.loss(decoder(words, MASK), _batch(SENTENCES, 6), MASK)
    for row, sentence in enumerate(SENTENCES):
        vectors, alone = words[row : row + 1, : len(sentence)], MASK[row : row + 1, : len(sentence)]
        scores = decoder(vectors, alone)
        expected = torch.zeros(())
        for word in range(len(sentence)):
            sign = 1 if any(frame.predicate == word for frame in sentence.frames or ()) else -1
            expected = expected - functional.logsigmoid(sign * scores.predicates[0, word])
        for frame in sentence.frames or ():
            one = _batch([replace(sentence, frames=(frame,))], len(sentence))
            tags = decoder._gold_tag_scores(scores, one)
            expected = expected + decoder.crf.loss(tags, one.tags, torch.tensor([len(sentence)]))[0]
        torch.testing.assert_close(losses[row], expected)


def test_gradients_reach_every_parameter_also_without_frames() -> None:
    decoder = _decoder()
    words = torch.randn(3, 6, 8)
    decoder.loss(decoder(words, MASK), _batch(SENTENCES, 6), MASK).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in decoder.parameters())
    decoder.zero_grad()
    none = [replace(sentence, frames=()) for sentence in SENTENCES]
    decoder.loss(decoder(words, MASK), _batch(none, 6), MASK).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in decoder.parameters())


def test_given_predicates_and_their_own_words() -> None:
    """Frames stand at the gold's predicates and nowhere else, and no argument covers its predicate."""
    decoder = _decoder()
    with torch.inference_mode():
        scores = decoder(torch.randn(3, 6, 8) * 3, MASK)
        found = decoder.decode(scores, MASK)
        gold = [SENTENCES[0].frames, None, SENTENCES[2].frames]
        decoded = decoder.decode_given(scores, MASK, gold, found)
        alone = decoder.decode_given(scores, MASK, gold, [()] * 3)
    assert [[frame.predicate for frame in frames] for frames in decoded] == [[1, 4], [], [2]]
    assert decoded == alone  # a predicted frame is the same as with its predicate given
    frames = [frame for frames in decoded + found for frame in frames]
    assert any(frame.arguments for frame in frames)
    for frame in frames:
        assert not any(span.start <= frame.predicate < span.end for span in frame.arguments)


def test_no_roles_at_all() -> None:
    labels = Labels(())
    decoder = TASK.new_decoder(8, labels)
    sentence = Sentence(tuple("ab"), frames=(Frame(0, None, ()),))
    batch = TASK.collate([TASK.targets(sentence, labels)], 2)
    mask = torch.ones(1, 2, dtype=torch.bool)
    scores = decoder(torch.randn(1, 2, 8), mask)
    decoder.loss(scores, batch, mask).sum().backward()
    assert decoder.decode_given(scores, mask, [sentence.frames], [()]) == [(Frame(0, None, ()),)]


def test_scores_are_those_of_srl_eval() -> None:
    """The program on this sentence, in whose export gold lists the excess predicate: 2 right of 5 and 4."""
    gold = Sentence(
        tuple("abcdefgh"),
        frames=(
            Frame(1, None, (Span(0, 1, "A0"), Span(2, 4, "A1"), Span(5, 6, "C-A1"), Span(6, 7, "AM"))),
            Frame(4, None, (Span(2, 4, "A0"), Span(5, 6, "C-V"))),
        ),
    )
    first = Frame(1, None, (Span(0, 1, "C-A0"), Span(2, 4, "A1"), Span(6, 7, "AM"), Span(7, 8, "C-AM")))
    predicted = (first, Frame(7, None, (Span(0, 1, "A0"),)), Frame(4, None, (Span(2, 4, "A0"),)))
    metric = ArgumentScores("frames")
    metric.update([predicted, ()], [gold, Sentence(("not", "annotated"))])
    scores = metric.compute()
    assert {name: round(value, 2) for name, value in scores.items()} == {
        "precision": 40.0,
        "recall": 50.0,
        "f1": 44.44,
        "predicate_f1": 80.0,
    }
    metric.update([()], [gold], [gold.frames])
    scores = metric.compute()
    assert scores["recall"] == 25.0
    assert scores["given_precision"] == scores["given_recall"] == scores["given_f1"] == 100.0


SENSES = replace(TASK, senses=True)


def test_senses_are_labels_after_the_roles_and_old_inventories_have_none() -> None:
    labels = SENSES.labels(SENTENCES)
    assert labels.names[:3] == LABELS.names
    roles, senses = split_frame_labels(Labels(list(labels.names)))  # as a saved model has it
    assert (roles.names, senses.names) == (LABELS.names, ("x.01", "y.02", "z.01"))
    assert split_frame_labels(LABELS) == (split_frame_labels(LABELS).roles, split_frame_labels(LABELS).senses)
    assert not len(split_frame_labels(LABELS).senses)
    before, after = TASK.new_decoder(8, LABELS).state_dict(), SENSES.new_decoder(8, labels).state_dict()
    assert {name: value.shape for name, value in after.items() if not name.startswith("sense.")} == {
        name: value.shape for name, value in before.items()
    }
    other = Sentence(tuple("ab"), frames=(Frame(0, "new.01", ()), Frame(1, None, ())))
    assert SENSES.targets(other, labels).senses.tolist() == [UNKNOWN, UNKNOWN]


def test_senses_add_their_cross_entropy_to_the_loss_and_their_scores_to_structures() -> None:
    labels = SENSES.labels(SENTENCES)
    torch.manual_seed(0)
    decoder = SENSES.new_decoder(8, labels)
    words = torch.randn(3, 6, 8)
    batch = SENSES.collate([SENSES.targets(sentence, labels) for sentence in SENTENCES], 6)
    scores = decoder(words, MASK)
    together, structure = decoder.loss(scores, batch, MASK), decoder.structure_score(scores, batch, MASK)
    of_senses = decoder.sense(words[[0, 0, 2], [1, 4, 2]])
    gold = of_senses[[0, 1, 2], [0, 1, 2]]
    one = decoder.structure_score(scores, batch, MASK, labels.index("sense y.02"))
    torch.testing.assert_close(one.score, torch.stack([gold[1], torch.tensor(0.0), torch.tensor(0.0)]))
    assert one.items.tolist() == [1, 0, 0]
    [_, items, *_] = decoder.alternatives(scores, MASK, [(), (Frame(0, "x.01", ()),), ()], 3)
    best = next(item.best for item in items if item.kind == "sense")
    assert dict(best) == pytest.approx(
        dict(zip(decoder.sense.senses.names, decoder.sense(words[1, 0]).softmax(0).tolist(), strict=True))
    )
    decoder.sense = None
    losses = functional.cross_entropy(of_senses, torch.arange(3), reduction="none")
    rows = torch.tensor([0, 0, 2])
    expected = decoder.loss(scores, batch, MASK).index_add(0, rows, losses)
    torch.testing.assert_close(together, expected)
    bare = decoder.structure_score(scores, batch, MASK).score.index_add(0, rows, gold)
    torch.testing.assert_close(structure.score, bare)


def test_senses_are_learned_decoded_and_scored() -> None:
    torch.manual_seed(1)
    labels = SENSES.labels(SENTENCES)
    decoder = SENSES.new_decoder(8, labels)
    words = torch.randn(3, 6, 8)
    batch = SENSES.collate([SENSES.targets(sentence, labels) for sentence in SENTENCES], 6)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.03)
    for _ in range(100):
        optimizer.zero_grad()
        decoder.loss(decoder(words, MASK), batch, MASK).sum().backward()
        optimizer.step()
    with torch.inference_mode():
        scores = decoder(words, MASK)
        decoded = decoder.decode(scores, MASK)
        given = decoder.decode_given(scores, MASK, [sentence.frames for sentence in SENTENCES], decoded)
    assert decoded == given == [sentence.frames for sentence in SENTENCES]
    metric = SENSES.metric()
    metric.update(decoded, SENTENCES, given)
    assert set(metric.compute().values()) == {100.0}
    extra = {"sense/accuracy", "sense/f1"}
    assert set(metric.compute()) == {*SENSES.scores, *extra} - {"sense/"}


def test_scores_of_senses_by_hand() -> None:
    """Two of three senses right given the predicates; end to end 1 of 3 senses and 1 of 2 arguments."""
    gold = Sentence(
        tuple("abcdef"),
        frames=(
            Frame(0, "go.01", (Span(1, 2, "A0"), Span(2, 3, "A1"))),
            Frame(3, "eat.01", ()),
            Frame(4, "be.01", ()),
            Frame(5, None, ()),
        ),
    )
    predicted = (Frame(0, "go.01", (Span(1, 2, "A0"),)), Frame(3, "eat.02", ()), Frame(5, "x.01", ()))
    given = (*predicted[:2], Frame(4, "be.01", ()), predicted[2])
    metric = ArgumentScores("frames", senses=True)
    metric.update([predicted], [gold], [given])
    scores = metric.compute()
    assert scores["sense/accuracy"] == pytest.approx(100 * 2 / 3)
    # right: A0, go.01; predicted: A0, go.01, eat.02; gold: A0, A1 and three senses
    assert scores["sense/f1"] == pytest.approx(200 * 2 / (3 + 5))
