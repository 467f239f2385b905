"""Dependency parsing: loss, decoding and scores."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mtl.tasks.decoders.dep import ArcBatch, DepDecoder
from mtl.tasks.sentence import Arcs, Sentence
from mtl.tasks.structured import Dep
from mtl.tasks.task import UNKNOWN, Labels

SENTENCES = [
    Sentence(("They", "saw", "it"), arcs=Arcs((2, 0, 2), ("nsubj", "root", "obj"))),
    Sentence(("Go",), arcs=Arcs((0,), ("root",))),
    Sentence(("a", "b", "c", "d", "e"), arcs=Arcs((3, 1, 0, 5, 3), ("det", "amod", "root", "obj", "obj:x"))),
]
TASK = Dep(arc_dim=6, relation_dim=5, dropout=0.0)
LABELS = TASK.labels(SENTENCES)
MASK = torch.tensor([[True] * len(sentence) + [False] * (5 - len(sentence)) for sentence in SENTENCES])


def _decoder(seed: int = 0) -> DepDecoder:
    torch.manual_seed(seed)
    decoder = TASK.new_decoder(4, LABELS).double()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter)
    return decoder


def _batch(labels: Labels = LABELS) -> ArcBatch:
    return TASK.collate([TASK.targets(sentence, labels) for sentence in SENTENCES], 5)


def test_labels_are_sorted_and_targets_padded() -> None:
    assert LABELS.names == ("amod", "det", "nsubj", "obj", "obj:x", "root")
    batch = _batch()
    assert batch.heads.tolist()[1] == [0] + [UNKNOWN] * 4
    assert batch.relations.tolist()[0] == [2, 5, 3, UNKNOWN, UNKNOWN]


def test_loss_is_that_of_words_one_by_one() -> None:
    decoder = _decoder()
    words = torch.randn(3, 5, 4).double()
    scores = decoder(words, MASK)
    losses = decoder.loss(scores, _batch(), MASK)
    for row, sentence in enumerate(SENTENCES):
        n, expected = len(sentence), 0.0
        assert sentence.arcs
        for word, (head, relation) in enumerate(
            zip(sentence.arcs.heads, sentence.arcs.relations, strict=True)
        ):
            candidates = [c for c in range(n + 1) if c != word + 1]
            arcs = scores.arcs[row, word, candidates].log_softmax(0)
            expected -= arcs[candidates.index(head)].item()
            relations = decoder.relation(scores.dependents, scores.heads)[row, word, head].log_softmax(0)
            expected -= relations[LABELS.index(relation)].item()
        assert losses[row].item() == pytest.approx(expected)


def test_untrained_decoder_is_indifferent() -> None:
    decoder = TASK.new_decoder(4, LABELS)
    losses = decoder.loss(decoder(torch.randn(3, 5, 4), MASK), _batch(), MASK)
    lengths = MASK.sum(1)
    torch.testing.assert_close(losses, lengths * (lengths.log() + math.log(len(LABELS))))


def test_unseen_relations_are_left_out_of_the_loss() -> None:
    few = Labels(["root"])
    torch.manual_seed(0)
    decoder = TASK.new_decoder(4, few)
    losses = decoder.loss(decoder(torch.randn(3, 5, 4), MASK), _batch(few), MASK)
    lengths = MASK.sum(1)
    torch.testing.assert_close(
        losses, lengths * lengths.log()
    )  # with one relation, there is nothing to learn


def test_words_without_a_head_are_neither_learned_nor_scored() -> None:
    """The loss is that of the other words; whatever is predicted of them is as good."""
    whole = SENTENCES[2]
    assert whole.arcs
    heads, relations = whole.arcs.heads, whole.arcs.relations
    partial = replace(whole, arcs=Arcs((heads[0], None, *heads[2:4], None), (*relations[:4], "new")))
    assert TASK.labels([partial]).names == ("det", "obj", "root")
    decoder, words, mask = _decoder(), torch.randn(1, 5, 4).double(), MASK[2:]
    scores = decoder(words, mask)
    targets = [TASK.targets(each, LABELS) for each in (whole, partial)]
    columns = [torch.from_numpy(column) for column in targets[0]]
    expected = torch.zeros(1).double()
    for word in (0, 2, 3):
        alone = ArcBatch(*(torch.where(torch.arange(5) == word, column, UNKNOWN)[None] for column in columns))
        expected += decoder.loss(scores, alone, mask)
    torch.testing.assert_close(decoder.loss(scores, TASK.collate(targets[1:], 5), mask), expected)
    assert (
        TASK.loss_units(partial, targets[1]) == TASK.loss_units(partial) == TASK.items(partial)["arcs"] == 3
    )
    metric = TASK.metric()
    metric.update([Arcs((3, 1, 0, 3, 3), ("det", "x", "root", "obj", "x"))], [partial])
    assert metric.compute() == pytest.approx(
        {"uas": 200 / 3, "las": 200 / 3, "las_subtypes": 200 / 3, "ucm": 0.0, "lcm": 0.0}
    )


def test_scores_by_hand() -> None:
    gold = [
        Sentence(("a", "b", "c", "."), arcs=Arcs((2, 0, 2, 2), ("nsubj:pass", "root", "obj", "punct"))),
        Sentence(("unannotated",)),
    ]
    predicted = [Arcs((2, 0, 1, 2), ("nsubj", "root", "obj", "dep")), Arcs((0,), ("root",))]
    metric = TASK.metric()
    metric.update(predicted, gold)
    assert metric.compute() == {"uas": 75.0, "las": 50.0, "las_subtypes": 25.0, "ucm": 0.0, "lcm": 0.0}


LENGTHS = (8, 5, 1, 7, 8, 6)


def _decoded(task: Dep, labels: Labels = LABELS) -> list[Arcs]:
    """What a decoder with random weights makes of random words."""
    torch.manual_seed(1)
    decoder = task.new_decoder(4, labels).double()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter)
    mask = torch.arange(8) < torch.tensor(LENGTHS)[:, None]
    return decoder.decode(decoder(torch.randn(6, 8, 4).double(), mask), mask)


def _crossing(arcs: Arcs) -> bool:
    ends = [sorted((word, head)) for word, head in enumerate(arcs.heads, 1)]
    return any(a < c < b < d for a, b in ends for c, d in ends)


def test_a_tree_has_a_head_per_word_and_one_root() -> None:
    for arcs, words in zip(_decoded(TASK), LENGTHS, strict=True):
        assert len(arcs.heads) == len(arcs.relations) == words
        assert arcs.heads.count(0) == 1


def test_projective_trees_have_no_crossing_arcs() -> None:
    assert any(map(_crossing, _decoded(TASK)))
    assert not any(map(_crossing, _decoded(replace(TASK, projective=True))))


def test_the_relation_root_is_tied_to_the_root() -> None:
    """Heads stay; relations change only where one was `root` below a word, or another below the root."""
    labels = Labels(["det", "obj", "root", "root:x"])
    free, tied = _decoded(TASK, labels), _decoded(replace(TASK, tie_root=True), labels)
    changed = 0
    for before, after in zip(free, tied, strict=True):
        assert before.heads == after.heads
        for head, relation, earlier in zip(after.heads, after.relations, before.relations, strict=True):
            assert (head == 0) == relation.startswith("root")
            fits = (head == 0) == earlier.startswith("root")
            assert (relation == earlier) == fits
            changed += not fits
    assert changed


@pytest.mark.parametrize("names", [["det", "obj"], ["root", "root:x"]])
def test_labels_without_a_root_or_with_nothing_else_are_not_tied(names: list[str]) -> None:
    assert _decoded(TASK, Labels(names)) == _decoded(replace(TASK, tie_root=True), Labels(names))


def test_a_tied_decoder_is_made_before_its_values_are_read() -> None:
    """A model that is loaded makes its decoders without values first, to compare shapes."""
    task, labels = replace(TASK, tie_root=True), Labels(["det", "root"])
    with torch.device("meta"):
        decoder = task.new_decoder(4, labels)
    assert isinstance(decoder, DepDecoder)
    shapes = [[part.shape for part in made.buffers()] for made in (decoder, task.new_decoder(4, labels))]
    assert shapes[0] == shapes[1]
    assert decoder.of_root is not None
    assert decoder.of_root.is_meta


@pytest.mark.parametrize(
    ("heads", "message"), [((2, 0), "one head"), ((4, 0, 1), "between"), ((1, 0, 2), "own head")]
)
def test_impossible_heads_are_refused(heads: tuple[int, ...], message: str) -> None:
    sentence = Sentence(("a", "b", "c"), arcs=Arcs(heads, ("x",) * len(heads)))
    with pytest.raises(ValueError, match=message):
        TASK.targets(sentence, LABELS)
