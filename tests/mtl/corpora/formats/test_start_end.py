from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl.corpora.formats.phrase_structure import CellError, is_starred, starred_spans, starred_tree
from mtl.tasks.sentence import Span
from mtl.tasks.tree import Tree


def cells(spans: list[Span], length: int) -> list[str]:
    """Flat or nested spans in start-end notation, written from the definition."""
    return [
        "".join(f"({span.label}" for span in spans if span.start == word)
        + "*"
        + ")" * sum(span.end == word + 1 for span in spans)
        for word in range(length)
    ]


@given(st.lists(st.integers(0, 8), max_size=6, unique=True).map(sorted), st.booleans())
def test_spans_come_back(cuts, nested):
    bounds = list(zip(cuts[::2], cuts[1::2], strict=False))
    spans = [Span(start, end, f"A{order}") for order, (start, end) in enumerate(bounds)]
    if nested:
        spans = [Span(0, 9, "OUT"), *spans]
    column = cells(spans, 9)
    assert all(map(is_starred, column))
    assert list(starred_spans(column)) == spans


def trees(depth: int) -> st.SearchStrategy[Tree]:
    leaf = st.builds(Tree, st.sampled_from(["NN", "-LRB-"]), st.sampled_from(["x", "("]))
    if depth == 0:
        return leaf
    children = st.lists(trees(depth - 1), min_size=1, max_size=3).map(tuple)
    return st.builds(Tree, st.sampled_from(["NP", "VP"]), children) | leaf


def bits(tree: Tree) -> list[str]:
    """The bracket bits of a tree, written from the definition."""
    if tree.is_preterminal:
        return ["*"]
    inner = [cell for child in tree.children for cell in bits(child)]
    inner[0] = f"({tree.label}{inner[0]}"
    inner[-1] += ")"
    return inner


@given(trees(3).filter(lambda tree: not tree.is_preterminal))
def test_trees_come_back(tree):
    leaves = list(tree.leaves())
    assert (
        starred_tree(bits(tree), [leaf.label for leaf in leaves], [leaf.children for leaf in leaves]) == tree
    )


def test_a_name_without_a_star_is_one_word():
    assert starred_spans(["(GPE)", "*", "(ORG*", "*)"]) == (Span(0, 1, "GPE"), Span(2, 4, "ORG"))


@pytest.mark.parametrize(
    ("column", "row", "what"),
    [
        (["*", "*)"], 1, "never opened"),
        (["*", "(A0*", "*"], 1, "never closed"),
        (["A0"], 0, "not in start-end notation"),
        ([""], 0, "not in start-end notation"),
        (["(A0", ")"], 0, "not in start-end notation"),
        (["(A0*", ")"], 1, "not in start-end notation"),
    ],
)
def test_faulty_spans(column, row, what):
    with pytest.raises(CellError, match=what) as error:
        starred_spans(column)
    assert error.value.row == row


@pytest.mark.parametrize(
    ("column", "row", "what"),
    [
        (["(S*", "*"], 1, "left open"),
        (["(S*)", "*"], 1, "outside of the tree"),
        (["(S*))"], 0, "never opened"),
        (["(S*)", "(S*)"], 0, "2 trees"),
    ],
)
def test_faulty_trees(column, row, what):
    with pytest.raises(CellError, match=what) as error:
        starred_tree(column, ["T"] * len(column), ["w"] * len(column))
    assert error.value.row == row
