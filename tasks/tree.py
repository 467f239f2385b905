"""Phrase-structure trees and their bracket notation.

Nothing here recurses, so trees may be as deep as a decoder makes them (one level per word). Only comparison
with `==` recurses: Python raises `RecursionError` at a few hundred levels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from mtl.tasks.in_words import counted

T = TypeVar("T")

ROOTS = frozenset({"TOP", "ROOT", "S1", "VROOT", ""})
"""Labels of a topmost node that is not a constituent itself (NEGRA and TIGER: VROOT)."""

_TOKEN = re.compile(r"[()]|[^ \t\n()]+")  # other white space, such as U+00A0, may be part of a word
_ESCAPES = {"(": "-LRB-", ")": "-RRB-"}
_UNESCAPES = {escape: bracket for bracket, escape in _ESCAPES.items()}
_ESCAPED = re.compile("|".join(_UNESCAPES))


@dataclass(frozen=True, slots=True)
class Tree:
    """A node: its label and its children, which are trees, or one word if the node is a preterminal."""

    label: str
    children: tuple[Tree, ...] | str

    @classmethod
    def parse(cls, text: str) -> Tree:
        """Read one tree in bracket notation; raises `ValueError` saying what is wrong and where."""
        stack: list[tuple[str, list[Tree | str]]] = []
        root: Tree | None = None
        tokens = list(_TOKEN.finditer(text))
        position = 0
        while position < len(tokens):
            token = tokens[position].group()
            if root is not None:
                raise ValueError(f"text after the end of the tree at column {tokens[position].start() + 1}")
            if token == "(":
                following = tokens[position + 1].group() if position + 1 < len(tokens) else ")"
                label = "" if following in "()" else following
                position += 1 if label else 0
                stack.append((label, []))
            elif token == ")":
                if not stack:
                    raise ValueError(f"unmatched ')' at column {tokens[position].start() + 1}")
                node = _close(*stack.pop())
                if stack:
                    stack[-1][1].append(node)
                else:
                    root = node
            elif not stack:
                raise ValueError(f"'{token}' outside of brackets at column {tokens[position].start() + 1}")
            else:
                stack[-1][1].append(_ESCAPED.sub(lambda match: _UNESCAPES[match.group()], token))
            position += 1
        if stack or root is None:
            raise ValueError(f"{counted(len(stack), 'bracket')} left open" if stack else "no tree")
        return root

    @property
    def is_preterminal(self) -> bool:
        return isinstance(self.children, str)

    def leaves(self) -> Iterator[Tree]:
        """The preterminals, from left to right."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if isinstance(node.children, str):
                yield node
            else:
                waiting.extend(reversed(node.children))

    def fold(self, combine: Callable[[Tree, list[T]], T]) -> T:
        """The value of the root; `combine` makes a node's value from the node and its children's values.

        Children come before their parent, from left to right; a preterminal's list is empty.
        """
        waiting, parents_first = [self], []
        while waiting:
            node = waiting.pop()
            parents_first.append(node)
            if not isinstance(node.children, str):
                waiting.extend(node.children)
        values: list[T] = []
        for node in reversed(parents_first):
            first = len(values) - (0 if isinstance(node.children, str) else len(node.children))
            values[first:] = [combine(node, values[first:])]
        return values[0]

    def height(self) -> int:
        """Nodes on the longest path down to a word, the word included: 2 for a preterminal."""
        return self.fold(lambda node, heights: 1 + max(heights, default=1))

    def __str__(self) -> str:
        parts: list[str] = []
        waiting: list[Tree | str] = [self]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                parts.append(item)
            elif isinstance(item.children, str):
                word = "".join(_ESCAPES.get(character, character) for character in item.children)
                parts.append(f"({item.label} {word})")
            else:
                parts.append(f"({item.label}")
                waiting.append(")")
                for child in reversed(item.children):
                    waiting += [child, " "]
        return "".join(parts)


def _close(label: str, children: list[Tree | str]) -> Tree:
    if not children:
        if not label:
            raise ValueError("empty brackets")
        raise ValueError(
            f"'({label})' has a label and nothing below it: add a word, or take the brackets off a word"
        )
    words = [child for child in children if isinstance(child, str)]
    trees = [child for child in children if isinstance(child, Tree)]
    if trees and words:
        raise ValueError(
            f"the constituent '{label}' holds the word '{words[0]}' without a tag: write (TAG {words[0]})"
        )
    if len(words) > 1:
        raise ValueError(
            f"the tag '{label}' has {counted(len(words), 'word')}, '{words[0]}' and '{words[1]}': write "
            "(TAG WORD) for each"
        )
    return Tree(label, words[0] if words else tuple(trees))
