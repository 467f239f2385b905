"""Phrase-structure trees and their bracket notation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(r"[()]|[^\s()]+")
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
            raise ValueError(f"{len(stack)} bracket(s) left open" if stack else "no tree")
        return root

    @property
    def is_preterminal(self) -> bool:
        return isinstance(self.children, str)

    def leaves(self) -> Iterator[Tree]:
        """The preterminals, from left to right."""
        if isinstance(self.children, str):
            yield self
        else:
            for child in self.children:
                yield from child.leaves()

    def height(self) -> int:
        """Nodes on the longest way down to a word, the word included: 2 for a preterminal."""
        if isinstance(self.children, str):
            return 2
        return 1 + max(child.height() for child in self.children)

    def __str__(self) -> str:
        if isinstance(self.children, str):
            word = "".join(_ESCAPES.get(character, character) for character in self.children)
            return f"({self.label} {word})"
        return f"({self.label} {' '.join(map(str, self.children))})"


def _close(label: str, children: list[Tree | str]) -> Tree:
    if not children:
        raise ValueError(f"empty node '{label}'")
    if len(children) == 1 and isinstance(children[0], str):
        return Tree(label, children[0])
    trees = [child for child in children if isinstance(child, Tree)]
    if len(trees) != len(children):
        raise ValueError(f"node '{label}' mixes words and constituents")
    return Tree(label, tuple(trees))
