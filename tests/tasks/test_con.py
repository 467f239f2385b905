"""Constituency parsing: loss, decoding, annotating."""

from __future__ import annotations

import math

import pytest
import torch

from mtl.tasks.decoders.con import ConDecoder, SpanBatch, bracketing_log_partition
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.structured import Con
from mtl.tasks.task import UNKNOWN, Labels
from mtl.tasks.tree import Tree
from tests.tasks.test_cky import bracketings


def _sentence(text: str) -> Sentence:
    tree = Tree.parse(text)
    leaves = list(tree.leaves())
    return Sentence(
        tuple(str(leaf.children) for leaf in leaves), tags=tuple(leaf.label for leaf in leaves), tree=tree
    )


SENTENCES = [
    _sentence("(TOP (S (NP (PRP They)) (VP (VBD saw) (NP (PRP it)))))"),
    _sentence("(TOP (S (VP (VB Go))))"),
    _sentence("(TOP (NP (D a) (J b) (N c)) (UH d) (NP (N e)))"),
]
TASK = Con(span_dim=6, label_dim=5, dropout=0.0)
LABELS = TASK.labels(SENTENCES)
MASK = torch.tensor([[True] * len(sentence) + [False] * (5 - len(sentence)) for sentence in SENTENCES])


def _decoder() -> ConDecoder:
    torch.manual_seed(0)
    decoder = TASK.new_decoder(4, LABELS).double()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter)
    return decoder


def _batch(labels: Labels = LABELS) -> SpanBatch:
    return TASK.collate([TASK.targets(sentence, labels) for sentence in SENTENCES], 5)


def test_labels_are_chains_and_the_null_label() -> None:
    assert LABELS.names == ("", "NP", "S", "S VP", "VP")
    batch = _batch()
    assert batch.rows.tolist() == [0] * 5 + [1] + [2] * 9
    assert batch.labels[5] == LABELS.index("S VP")


def test_loss_is_that_of_brackets_and_labels_one_by_one() -> None:
    decoder = _decoder()
    scores = decoder(torch.randn(3, 5, 4).double(), MASK)
    batch = _batch()
    losses = decoder.loss(scores, batch, MASK)
    expected = bracketing_log_partition(scores.brackets, MASK.sum(1))
    for row, bracket, left, _, label in zip(*(column.tolist() for column in batch), strict=True):
        start, end = left % 6, bracket % 6
        expected[row] -= scores.brackets[row, start, end]
        hidden = torch.nn.functional.leaky_relu(scores.starts[row, start] + scores.ends[row, end], 0.1)
        expected[row] -= decoder.label(hidden).log_softmax(0)[label]
    torch.testing.assert_close(losses, expected)


def test_untrained_decoder_is_indifferent_to_brackets() -> None:
    decoder = TASK.new_decoder(4, LABELS)
    torch.nn.init.zeros_(decoder.label.weight)
    torch.nn.init.zeros_(decoder.label.bias)
    losses = decoder.loss(decoder(torch.randn(3, 5, 4), MASK), _batch(), MASK)
    lengths = MASK.sum(1).tolist()
    catalan = [math.comb(2 * n - 2, n - 1) / n for n in lengths]
    expected = [math.log(c) + (2 * n - 1) * math.log(5) for c, n in zip(catalan, lengths, strict=True)]
    torch.testing.assert_close(losses, torch.tensor(expected))


def test_unseen_labels_are_left_out_of_the_loss() -> None:
    few = Labels([""])
    batch = _batch(few)
    assert (batch.labels == UNKNOWN).sum() == 7
    decoder = TASK.new_decoder(4, few)
    losses = decoder.loss(decoder(torch.randn(3, 5, 4), MASK), batch, MASK)
    torch.testing.assert_close(losses, torch.tensor([2.0, 1.0, 14.0]).log())  # bracketings alone: Catalan


def test_mbr_expects_most_correct_brackets_of_all_bracketings() -> None:
    """Against every bracketing, weighted by its probability; the most probable one is often another."""
    torch.manual_seed(0)
    decoder = Con(span_dim=6, label_dim=5, decoding="mbr").new_decoder(4, Labels(["X", "Y"])).double().eval()
    mask = torch.arange(6) < (torch.arange(60) % 6 + 1)[:, None]
    scores = decoder(torch.randn(60, 6, 4).double(), mask)
    scores = scores._replace(brackets=torch.randn(60, 7, 7).double())
    decoded = decoder.decode(scores, mask)
    decoder.decoding = "viterbi"
    others = 0
    for row, (spans, best, n) in enumerate(
        zip(decoded, decoder.decode(scores, mask), mask.sum(1).tolist(), strict=True)
    ):
        trees = [frozenset(tree) for tree in bracketings(0, n)]
        totals = torch.stack([sum(scores.brackets[row, i, j] for i, j in tree) for tree in trees])
        chances = totals.softmax(0).tolist()
        expected = {
            tree: sum(len(tree & other) * chance for other, chance in zip(trees, chances, strict=True))
            for tree in trees
        }
        assert {(start, end) for start, end, _ in spans} == max(trees, key=expected.__getitem__)
        others += spans != best
    assert others


def test_annotating_without_tags() -> None:
    annotated = TASK.annotate(Sentence(("a", "b")), (Span(1, 2, "NP"),))
    assert str(annotated.tree) == "(TOP (XX a) (NP (XX b)))"
    assert TASK.annotated(annotated)
    assert not TASK.annotated(Sentence(("a", "b")))


def test_a_tree_over_other_words_is_refused() -> None:
    with pytest.raises(ValueError, match="tree over its 1 word"):
        TASK.targets(Sentence(("a",), tree=Tree.parse("(TOP (N a) (N b))")), LABELS)
