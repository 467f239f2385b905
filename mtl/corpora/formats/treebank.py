"""The words and labels of trees: putting words back, and taking treebank decoration off."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tasks.tree import Tree

_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}
_FUNCTION = re.compile(r"^([^-=]+)[-=].*")
DEEPEST = 200
"""Levels of a tree that are read (English Web Treebank has 38): what walks trees is recursive."""
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff]")  # not white space
_EMPTY_LABEL = re.compile(r"\(\s*\(")
IN_BRACKETS = str.maketrans({"(": "-LRB-", ")": "-RRB-"})
"""How words and labels write brackets in bracket notation, for `str.translate`."""
_ROOTS = {"", "TOP", "ROOT", "S1"}


def plain_word(word: str) -> str:
    r"""A treebank's word as it stood in the text: `-LRB-` is `(`, `1\/2` is `1/2`, OntoNotes' `/.` is `.`."""
    if word in _BRACKETS:
        return _BRACKETS[word]
    if word in {"/.", "/?"}:
        return word[1:]
    return word.replace("\\/", "/").replace("\\*", "*") if "\\" in word else word


def parse_tree(text: str) -> Tree:
    """The tree in bracket notation; raises `ValueError` if it is malformed, too deep or cannot be written."""
    if text.count("(") > DEEPEST:
        depth = deepest = 0
        for sign in re.finditer(r"[()]", text):
            depth += 1 if sign.group() == "(" else -1
            deepest = max(deepest, depth)
        if deepest > DEEPEST:
            raise ValueError(f"{deepest} levels of brackets; at most {DEEPEST} are read")
    control = _CONTROL.search(text)
    if control is not None:
        raise ValueError(f"a control character, {control.group()!a}, at column {control.start() + 1}")
    unlabelled = _EMPTY_LABEL.search(text, text.find("(") + 1)
    if unlabelled is not None:
        raise ValueError(f"a constituent without a label at column {unlabelled.start() + 1}")
    return Tree.parse(text)


def with_words(tree: Tree, words: Sequence[str]) -> Tree:
    """The tree over other words; raises `ValueError` if it has not as many leaves."""
    rest = iter(words)
    try:
        result = _with_words(tree, rest)
    except StopIteration:
        result = None
    if result is None or next(rest, None) is not None:
        raise ValueError(f"the tree has {sum(1 for _ in tree.leaves())} words, the sentence {len(words)}")
    return result


def _with_words(tree: Tree, words: Iterator[str]) -> Tree:
    if isinstance(tree.children, str):
        return Tree(tree.label, next(words))
    return Tree(tree.label, tuple([_with_words(child, words) for child in tree.children]))


def rooted(tree: Tree) -> Tree:
    """The tree under one root labelled TOP: an empty, ROOT or S1 root is renamed, any other gets it above."""
    if tree.is_preterminal or tree.label not in _ROOTS:
        return Tree("TOP", (tree,))
    return tree if tree.label == "TOP" else Tree("TOP", tree.children)


def without_functions(tree: Tree) -> Tree:
    """The tree with function tags and indices cut from its constituents (NP-SBJ-1 and NP=2 become NP)."""
    if isinstance(tree.children, str):
        return tree
    return Tree(
        _FUNCTION.sub(r"\1", tree.label), tuple([without_functions(child) for child in tree.children])
    )


def without_traces(tree: Tree) -> Tree | None:
    """The tree without -NONE- leaves and without the constituents that they leave empty."""
    if isinstance(tree.children, str):
        return None if tree.label == "-NONE-" else tree
    children = tuple([kept for child in tree.children if (kept := without_traces(child)) is not None])
    return Tree(tree.label, children) if children else None
