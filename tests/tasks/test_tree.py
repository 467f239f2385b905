"""Bracket notation: reading undoes writing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl.tasks.tree import Tree

WORDS = st.sampled_from(["a", "(", ")", ":)", "f(x)", "--", "-L"])
LABELS = st.sampled_from(["NP", "VP", "-LRB-", ",", "S"])
TREES = st.recursive(
    st.builds(Tree, LABELS, WORDS),
    lambda below: st.builds(Tree, LABELS, st.lists(below, min_size=1, max_size=4).map(tuple)),
    max_leaves=12,
)


@given(TREES)
def test_reading_undoes_writing(tree: Tree) -> None:
    assert Tree.parse(str(tree)) == tree
    assert str(tree).count("(") == str(tree).count(")")


def test_heights_and_leaves() -> None:
    tree = Tree.parse("(TOP (S (NP (PRP We)) (VP (VBD ate))) (. .))")
    assert tree.height() == 5
    assert [leaf.children for leaf in tree.leaves()] == ["We", "ate", "."]
    assert Tree.parse("( (NN a))") == Tree("", (Tree("NN", "a"),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NN a)", "1 bracket"),
        ("(S (NN a)))", "after the end"),
        (")", "unmatched"),
        ("", "no tree"),
        ("(S)", "'\\(S\\)' has a label and nothing below"),
        ("(S (NN a) b)", "'S' holds the word 'b' without a tag"),
        ("a", "outside of brackets at column 1"),
    ],
)
def test_malformed_brackets_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree.parse(text)


def test_no_depth_is_too_deep() -> None:
    """A decoder may nest a bracket per word; writing, counting and reading must not recurse."""
    depth = 20_000
    text = "(X " * depth + "(N a)" + ")" * depth
    tree = Tree.parse(text)
    assert str(tree) == text
    assert tree.height() == depth + 2
    assert [leaf.children for leaf in tree.leaves()] == ["a"]


@given(TREES)
def test_folding_visits_children_before_parents_from_left_to_right(tree: Tree) -> None:
    visited: list[str] = []

    def copy(node: Tree, children: list[Tree]) -> Tree:
        if isinstance(node.children, str):
            visited.append(node.children)
            return node
        assert tuple(children) == node.children
        return Tree(node.label, tuple(children))

    assert tree.fold(copy) == tree
    assert visited == [leaf.children for leaf in tree.leaves()]
