"""The words and labels of treebank trees: escapes, roots, function tags and traces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote

from mtl.tasks.in_words import counted
from mtl.tasks.tree import ROOTS, Tree

_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}
_BRACKET = re.compile("|".join(_BRACKETS))
_FUNCTION = re.compile(r"^([^-=]+)[-=].*")
DEEPEST = 200
"""Maximum number of levels of a tree (the English Web Treebank has 38); more are a converter's error."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # not tab and line feed
_EMPTY_LABEL = re.compile(r"\([ \t\n]*\(")
_BLANK_IN_LABEL = re.compile(r"\([ \t\n]*([^ \t\n()]*[^\S \t\n][^ \t\n()]*)")
"""A label that contains white space such as U+00A0, which words may contain."""
IN_BRACKETS = str.maketrans({"(": "-LRB-", ")": "-RRB-"})
"""Brackets in words as bracket notation writes them, for `str.translate`."""
_NOT_IN_A_LABEL = re.compile(r"[\s()\x00-\x1f\x7f-\x9f]+|%(?=[0-9A-F]{2})")
_QUOTED = re.compile(r"(?:%[0-9A-F]{2})+")


def plain_word(word: str) -> str:
    r"""A treebank's word as in the text: `(` for `-LRB-`, `1/2` for `1\/2`, `.` for OntoNotes' `/.`."""
    if "B-" in word:
        word = _BRACKET.sub(lambda match: _BRACKETS[match.group()], word)
    if word in {"/.", "/?"}:
        return word[1:]
    return word.replace("\\/", "/").replace("\\*", "*") if "\\" in word else word


def label_in_brackets(label: str) -> str:
    """A label in the bracket notation of our own files: characters that would end it are quoted (`%28`)."""
    return _NOT_IN_A_LABEL.sub(lambda match: quote(match.group(), safe=""), label)


def label_from_brackets(label: str) -> str:
    """The label that `label_in_brackets` wrote."""
    return _QUOTED.sub(lambda match: unquote(match.group()), label)


def parse_tree(text: str, deepest: int = DEEPEST) -> Tree:
    """The tree in bracket notation; raises `ValueError` if it is malformed, too deep or not writable."""
    if text.count("(") > deepest:
        depth = levels = 0
        for bracket in re.finditer(r"[()]", text):
            depth += 1 if bracket.group() == "(" else -1
            levels = max(levels, depth)
        if levels > deepest:
            raise ValueError(f"{counted(levels, 'level')} of brackets; at most {deepest} are read")
    control = _CONTROL.search(text)
    if control is not None:
        raise ValueError(f"a control character, {control.group()!a}, at column {control.start() + 1}")
    unlabelled = _EMPTY_LABEL.search(text, text.find("(") + 1)
    if unlabelled is not None:
        raise ValueError(f"a constituent without a label at column {unlabelled.start() + 1}")
    label = _BLANK_IN_LABEL.search(text)
    if label is not None:
        raise ValueError(f"white space in the label {label[1]!a} at column {label.start() + 1}")
    return Tree.parse(text)


def with_words(tree: Tree, words: Sequence[str]) -> Tree:
    """The tree over other words; raises `ValueError` if it has another number of leaves."""
    leaves = sum(1 for _ in tree.leaves())
    if leaves != len(words):
        raise ValueError(f"the tree has {counted(leaves, 'word')}, the sentence {len(words)}")
    rest = iter(words)
    return tree.fold(
        lambda node, children: Tree(node.label, next(rest) if node.is_preterminal else tuple(children))
    )


def rooted(tree: Tree) -> Tree:
    """The tree under a root TOP: a root with a label in `ROOTS` is renamed, others get TOP above them."""
    if tree.is_preterminal or tree.label not in ROOTS:
        return Tree("TOP", (tree,))
    return tree if tree.label == "TOP" else Tree("TOP", tree.children)


def without_functions(tree: Tree) -> Tree:
    """The tree without function tags and indices in labels of constituents (NP-SBJ-1 and NP=2 become NP)."""
    return tree.fold(
        lambda node, children: (
            node if node.is_preterminal else Tree(_FUNCTION.sub(r"\1", node.label), tuple(children))
        )
    )


def without_traces(tree: Tree) -> Tree | None:
    """The tree without -NONE- leaves and constituents left empty by them; `None` if nothing is left."""

    def prune(node: Tree, children: list[Tree | None]) -> Tree | None:
        if node.is_preterminal:
            return None if node.label == "-NONE-" else node
        rest = tuple([child for child in children if child is not None])
        return Tree(node.label, rest) if rest else None

    return tree.fold(prune)
