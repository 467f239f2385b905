"""Binarisation is undone exactly, unary chains and several top constituents included."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl.tasks.binarise import binarise, build, constituents, restore
from mtl.tasks.sentence import Span
from mtl.tasks.tree import Tree

EWT5 = Path(__file__).parents[2] / "data" / "ewt5"


def random_tree(seed: int) -> Tree:
    """A tree under TOP with unary chains, flat nodes and words directly under the root."""
    generator = random.Random(seed)

    def node(depth: int) -> Tree:
        if depth == 0 or generator.random() < 0.3:
            return Tree(generator.choice("NVD"), generator.choice("abc"))
        below = tuple(node(depth - 1) for _ in range(generator.choice([1, 1, 2, 3, 4])))
        return Tree(generator.choice(["S", "NP", "VP"]), below)

    return Tree("TOP", tuple(node(4) for _ in range(generator.choice([1, 1, 2, 3]))))


def _assert_exact(tree: Tree) -> None:
    leaves = list(tree.leaves())
    words, tags = [str(leaf.children) for leaf in leaves], [leaf.label for leaf in leaves]
    spans = constituents(tree)
    brackets = binarise(spans, len(words))
    assert len(brackets) == 2 * len(words) - 1
    assert restore(brackets) == spans
    assert build(words, tags, restore(brackets)) == tree
    _assert_binary([(start, end) for start, end, _ in brackets])


def _assert_binary(brackets: list[tuple[int, int]]) -> None:
    """In pre-order, every bracket of several words is followed by its two halves."""

    def skip(place: int) -> int:
        start, end = brackets[place]
        if end - start == 1:
            return place + 1
        assert brackets[place + 1][0] == start
        right = skip(place + 1)
        assert brackets[right] == (brackets[place + 1][1], end)
        return skip(right)

    assert skip(0) == len(brackets)


@given(st.integers(0, 10**6))
def test_random_trees_are_restored_exactly(seed: int) -> None:
    _assert_exact(random_tree(seed))


@pytest.mark.slow
@pytest.mark.skipif(not EWT5.exists(), reason="data/ewt5 is not built (mtl data ewt5)")
def test_all_trees_of_ewt_are_restored_exactly() -> None:
    trees = 0
    for path in EWT5.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            if text := json.loads(line)["tree"]:
                _assert_exact(Tree.parse(text))
                trees += 1
    assert trees > 16_000


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("(TOP (S (NP (PRP We)) (VP (VBD ate))))", [(0, 2, "S"), (0, 1, "NP"), (1, 2, "VP")]),
        ("(TOP (S (VP (VB Go))))", [(0, 1, "S"), (0, 1, "VP")]),
        ("(TOP (UH Yes))", []),
        ("(TOP (FW etc) (NP (NN a) (NN b)) (. .))", [(1, 3, "NP")]),
        ("( (S (NN a)))", [(0, 1, "S")]),
        ("(S (NP (NN a)) (VP (VB b)))", [(0, 2, "S"), (0, 1, "NP"), (1, 2, "VP")]),
        ("(UH Yes)", []),
    ],
)
def test_constituents_by_hand(text: str, spans: list[tuple[int, int, str]]) -> None:
    assert list(constituents(Tree.parse(text))) == spans


def test_brackets_by_hand() -> None:
    tree = Tree.parse("(TOP (S (NP (DT a) (JJ b) (NN c)) (VP (VB d)) (. e)))")
    assert binarise(constituents(tree), 5) == [
        (0, 5, "S"),
        (0, 4, ""),
        (0, 3, "NP"),
        (0, 2, ""),
        (0, 1, ""),
        (1, 2, ""),
        (2, 3, ""),
        (3, 4, "VP"),
        (4, 5, ""),
    ]
    assert binarise([Span(0, 1, "S"), Span(0, 1, "VP")], 1) == [(0, 1, "S VP")]


@pytest.mark.parametrize(
    "spans", [[(0, 2, "A"), (1, 3, "B")], [(0, 4, "A")], [(1, 1, "A")], [(0, 2, "A B")], [(0, 2, "")]]
)
def test_what_is_no_tree_is_refused(spans: list[tuple[int, int, str]]) -> None:
    with pytest.raises(ValueError, match=r"cross|no constituent"):
        binarise([Span(*span) for span in spans], 3)


@pytest.mark.parametrize("spans", [[(0, 2, "A"), (1, 3, "B")], [(0, 4, "A")], [(1, 1, "A")]])
def test_no_tree_is_built_from_what_is_none(spans: list[tuple[int, int, str]]) -> None:
    with pytest.raises(ValueError, match="crosses"):
        build("abc", "NNN", [Span(*span) for span in spans])


def test_a_bracket_per_word_is_not_too_deep() -> None:
    """A right-branching tree of a long sentence, as an untrained parser finds it."""
    size = 3_000
    spans = tuple(Span(start, size, "X") for start in range(size - 1))
    tree = build(["a"] * size, ["N"] * size, spans)
    assert tree.height() == size + 2
    assert constituents(tree) == spans
    assert restore(binarise(spans, size)) == spans


def test_roots_of_treebanks_are_no_constituents() -> None:
    for root in ("VROOT", "TOP", "ROOT", "S1", ""):
        tree = Tree.parse(f"({root} (S (NP (PPER Sie)) (VVFIN singt)) ($. .))")
        assert constituents(tree) == (Span(0, 2, "S"), Span(0, 1, "NP"))
