from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtl.probes.measures import items
from mtl.probes.measures.items import Item
from mtl.probes.measures.record import ROOT, ragged
from tests.probes import planted


def of(task: str, number: int) -> list[Item]:
    return list(items.PROBE_TARGETS[task].items(planted.CORPUS[number]))


def test_what_is_probed_for() -> None:
    assert of("pos", 0)[:2] == [Item(0, 1, "DT"), Item(1, 2, "JJ")]
    assert of("ner", 2) == [Item(0, 1, "PER"), Item(5, 6, "LOC")]
    assert of("dep", 0)[2:4] == [Item(2, 3, "nsubj", 3), Item(3, 4, "root", ROOT)]
    assert of("con", 0) == [Item(0, 3, "NP"), Item(4, 6, "NP")]
    assert of("con", 2) == [Item(0, 1, "NP"), Item(2, 3, "ADVP"), Item(5, 7, "NP")]
    assert of("srl", 2)[-1] == Item(5, 7, "ARG1", 4)


@pytest.mark.parametrize("task", items.PROBE_TARGETS)
def test_what_is_not_annotated_has_no_items(task: str) -> None:
    assert of(task, 3) == []


@pytest.mark.parametrize("task", items.PROBE_TARGETS)
def test_a_batch_has_the_items_of_its_sentences(task: str) -> None:
    index = items.index(planted.CORPUS, items.PROBE_TARGETS[task].items)
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
            assert words[placed.start[place]] == (number, item.start)
            assert placed.length[place] == item.end - item.start
            assert placed.in_sentence[place] == item.start
            assert placed.anchor[place] == item.anchor
            if task in ("dep", "srl"):
                assert queries[placed.at_anchor[place]] == (number, item.anchor)


def test_labels_may_be_given() -> None:
    index = items.index(planted.CORPUS, items.entities, {"PER", "ORG", "LOC"})
    assert index.names == ("LOC", "ORG", "PER")
    assert index.per_label().tolist() == [1, 0, 2]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5))))
def test_ragged_is_ranges_in_a_row(pairs: list[tuple[int, int]]) -> None:
    start = torch.tensor([first for first, _ in pairs], dtype=torch.long)
    length = torch.tensor([count for _, count in pairs], dtype=torch.long)
    expected = [first + step for first, count in pairs for step in range(count)]
    assert ragged(start, length).tolist() == expected
