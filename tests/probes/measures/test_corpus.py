""""""

from __future__ import annotations

import nltk
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtl.probes.measures import corpus
from mtl.probes.measures.corpus import LabelledSpan
from mtl.probes.measures.probe import ROOT, ragged
from mtl.tasks.sentence import Sentence
from mtl.tasks.tree import Tree
from tests.probes import planted


def of(task: str, number: int) -> list[LabelledSpan]:
    return list(corpus.PROBE_TARGETS[task].items(planted.CORPUS[number]))


def test_what_is_probed_for() -> None:
    assert of("pos", 0)[:2] == [LabelledSpan(0, 1, "DT"), LabelledSpan(1, 2, "JJ")]
    assert of("ner", 2) == [LabelledSpan(0, 1, "PER"), LabelledSpan(5, 6, "LOC")]
    assert of("dep", 0)[2:4] == [LabelledSpan(2, 3, "nsubj", 3), LabelledSpan(3, 4, "root", ROOT)]
    assert of("con", 0) == [LabelledSpan(0, 3, "NP"), LabelledSpan(4, 6, "NP")]
    assert of("con", 2) == [LabelledSpan(0, 1, "NP"), LabelledSpan(2, 3, "ADVP"), LabelledSpan(5, 7, "NP")]
    assert of("srl", 2)[-1] == LabelledSpan(5, 7, "ARG1", 4)


DEEP = "(TOP (S (NP (NP (DT a) (NN b)) (PP (IN of) (NP (NNS c)))) (VP (VBZ d) (PRT (RP up))) (. .)))"


def test_constituents_have_their_heights_in_their_labels() -> None:
    """As nltk counts them, in which a preterminal has the height 2; the topmost node is none."""
    sentence = Sentence(tuple("abcdefg"), tree=Tree.parse(DEEP))
    expected = []
    for place in (tree := nltk.Tree.fromstring(DEEP)).treepositions():
        node = tree[place]
        if place and isinstance(node, nltk.Tree) and node.height() > 2:
            before = sum(at[: len(place)] < place for at in tree.treepositions("leaves"))
            expected.append((before, before + len(node.leaves()), f"{node.label()}-{node.height()}"))
    every = [span[:3] for span in corpus.CONSTITUENTS["all"].items(sentence)]
    assert sorted(every) == sorted(expected)
    assert {"S-6", "NP-5", "PP-4", "VP-4", "NP-3", "PRT-3"} == {label for *_, label in every}
    ends = list(corpus.CONSTITUENTS["ends"].items(sentence))
    assert sorted((each.anchor, each.end, each.label) for each in ends) == sorted(
        span for span in every if span[1] - span[0] > 1
    )
    assert all(each.end - each.start == 1 for each in ends)
    lowest = {f"{label}-3" for *_, label, _ in corpus.CONSTITUENTS["lowest"].items(sentence)}
    assert lowest == {label for *_, label in every if label.endswith("-3")}


@pytest.mark.parametrize("task", corpus.PROBE_TARGETS)
def test_what_is_not_annotated_has_no_items(task: str) -> None:
    assert of(task, 3) == []


@pytest.mark.parametrize("task", corpus.PROBE_TARGETS)
def test_a_batch_has_the_items_of_its_sentences(task: str) -> None:
    index = corpus.index(planted.CORPUS, corpus.PROBE_TARGETS[task].items)
    matrices = planted.random_matrices(planted.CORPUS, 1, 1, 0)
    outputs = planted.random_outputs(planted.CORPUS, 1, 1, 2, 0)
    for batch in ((2, 0), (1, 3, 0), (3,)):
        placed = index.within(planted.records_of(matrices, outputs, batch))
        words = [(number, word) for number in batch for word in range(len(planted.CORPUS[number]))]
        queries = [*words, *((number, ROOT) for number in batch)]
        expected = [(number, item) for number in batch for item in of(task, number)]
        assert len(placed.number) == len(expected)
        for place, (number, item) in enumerate(expected):
            assert index.names[placed.label[place]] == item.label
            of_item = [words[word] for word in placed.word[placed.item == place].tolist()]
            assert of_item == [(number, word) for word in range(item.start, item.end)]
            assert placed.length[place] == item.end - item.start
            assert placed.in_sentence[place] == item.start
            assert placed.anchor[place] == item.anchor
            if task in ("dep", "srl"):
                assert queries[placed.at_anchor[place]] == (number, item.anchor)


def test_labels_may_be_given() -> None:
    index = corpus.index(planted.CORPUS, corpus.named_entities, {"PER", "ORG", "LOC"})
    assert index.names == ("LOC", "ORG", "PER")
    assert index.per_label().tolist() == [1, 0, 2]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5))))
def test_ragged_is_ranges_in_a_row(pairs: list[tuple[int, int]]) -> None:
    start = torch.tensor([first for first, _ in pairs], dtype=torch.long)
    length = torch.tensor([count for _, count in pairs], dtype=torch.long)
    expected = [first + step for first, count in pairs for step in range(count)]
    assert ragged(start, length).tolist() == expected
