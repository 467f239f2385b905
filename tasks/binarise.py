"""Constituents as the 2n - 1 labelled brackets of a binary tree, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Span
from mtl.tasks.tree import ROOTS, Tree

NULL = ""
"""The label of a bracket that is no constituent: of an intermediate one, or of a word by itself."""
CHAIN = " "
"""Joins a unary chain's labels, outer first; no label in bracket notation can contain a space."""


def constituents(tree: Tree) -> tuple[Span, ...]:
    """All constituents in pre-order (of a unary chain the outer first), without root and preterminals."""
    starts: list[int] = []
    ends: list[int] = []
    labels: list[str] = []
    words = 0
    waiting: list[Tree | int] = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, int):  # the constituent of this index ends here
            ends[item] = words
        elif isinstance(item.children, str):
            words += 1
        else:
            waiting.append(len(starts))
            starts.append(words)
            ends.append(words)
            labels.append(item.label)
            waiting += item.children[::-1]
    first = 1 if labels and labels[0] in ROOTS else 0
    return tuple(map(Span, starts[first:], ends[first:], labels[first:]))


def build(words: Sequence[str], tags: Sequence[str], spans: Iterable[Span], root: str = "TOP") -> Tree:
    """The tree whose constituents are `spans` (in pre-order) under a root node.

    Raises `ValueError` if a span crosses another, is empty or lies outside of the sentence.
    """
    pending = list(spans)[::-1]
    word = 0
    unfinished: list[tuple[Span, list[Tree]]] = [(Span(0, len(words), root), [])]
    while True:
        span, children = unfinished[-1]
        if pending and pending[-1].start == word < pending[-1].end <= span.end:
            unfinished.append((pending.pop(), []))
        elif word < span.end:
            children.append(Tree(tags[word], words[word]))
            word += 1
        else:
            unfinished.pop()
            tree = Tree(span.label, tuple(children))
            if not unfinished:
                break
            unfinished[-1][1].append(tree)
    if pending:
        raise ValueError(f"constituent {tuple(pending[-1])} crosses another, is empty or lies outside")
    return tree


def binarise(spans: Sequence[Span], length: int) -> list[Span]:
    """The brackets of the left-branching binary tree over the constituents (in pre-order), in pre-order.

    Unary chains become one label, joined by `CHAIN`; every word and the whole sentence get a bracket;
    brackets that are no constituents are `NULL`. Raises `ValueError` if constituents cross, lie outside of
    the sentence, or have no label or one with a space.
    """
    labels = {(0, length): NULL} | {(word, word + 1): NULL for word in range(length)}
    for start, end, label in spans:
        if not 0 <= start < end <= length or not label or CHAIN in label:
            raise ValueError(
                f"({start}, {end}, '{label}') is no constituent of a sentence of {counted(length, 'word')}"
            )
        outer = labels.get((start, end), NULL)
        labels[start, end] = f"{outer}{CHAIN}{label}" if outer else label
    above: list[tuple[int, int]] = []
    for start, end in sorted(labels, key=_pre_order):
        while above and above[-1][1] <= start:
            above.pop()
        if above:
            first, last = above[-1]
            if end > last:
                raise ValueError(f"constituents ({first}, {last}) and ({start}, {end}) cross")
            if first < start and end < last:
                labels[first, end] = NULL  # (((1 2) 3) 4): intermediates start where the constituent does
        above.append((start, end))
    return [Span(start, end, labels[start, end]) for start, end in sorted(labels, key=_pre_order)]


def _pre_order(span: tuple[int, int]) -> tuple[int, int]:
    return span[0], -span[1]


def restore(brackets: Iterable[Span]) -> tuple[Span, ...]:
    """The constituents (in pre-order) that brackets in pre-order encode: the inverse of `binarise`."""
    return tuple(
        Span(start, end, label)
        for start, end, chain in brackets
        if chain != NULL
        for label in chain.split(CHAIN)
    )
