"""The start-end notation of the CoNLL shared tasks, one cell per word: `(NP*`, `*`, `*)`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mtl.corpora.formats.treebank import DEEPEST, IN_BRACKETS
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Span
from mtl.tasks.tree import Tree

_CELL = re.compile(r"((?:\([^()* \t]+)*)(?:\*|(?<=[^*()])(?=\)))(\)*)")
_STARRED = re.compile(r"(?:\([^()* \t]+)*\*\)*")


class CellError(ValueError):
    """A fault in one cell of a column; `row` counts from 0."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


def is_starred(cell: str) -> bool:
    """Whether a cell is in start-end notation with its star."""
    return _STARRED.fullmatch(cell) is not None


def starred_spans(cells: Sequence[str]) -> tuple[Span, ...]:
    """The labelled spans of one column, in the order in which they open; `(GPE)` needs no star."""
    spans: list[Span] = []
    stack: list[int] = []
    for row, cell in enumerate(cells):
        if cell == "*":  # the quick way: nearly all cells are
            continue
        opened, closed = _split(row, cell)
        for label in opened:
            stack.append(len(spans))
            spans.append(Span(row, row, label))
        for _ in range(closed):
            if not stack:
                raise CellError(row, f"'{cell}' closes a span that was never opened")
            index = stack.pop()
            spans[index] = spans[index]._replace(end=row + 1)
    if stack:
        last = spans[stack[-1]]
        raise CellError(last.start, f"the span '({last.label}*' is never closed; add its ')'")
    return tuple(spans)


def require_verb(spans: Sequence[Span], predicate: int, column: int) -> None:
    """Raise `CellError` if a predicate's column (counted from 0) has its `V` elsewhere, or several `V`.

    Predicates and columns are in the same order, so an extra or missing column would shift all that follow.
    """
    several = [span.start for span in spans if span.label == "V"][1:]
    if several:
        raise CellError(
            several[0],
            f"a second '(V*)' in column {column + 1}; write the further parts of a verb as (C-V*)",
        )
    verbs = [span for span in spans if span.label in ("V", "C-V")]
    if verbs and not any(start <= predicate < end for start, end, _ in verbs):
        raise CellError(
            predicate,
            f"this predicate's column {column + 1} has its '(V*)' at word {verbs[0].start + 1}, not at word "
            f"{predicate + 1}; put the columns into the order of their predicates",
        )


def starred_tree(cells: Sequence[str], tags: Sequence[str], words: Sequence[str]) -> Tree:
    """The tree of one column of bracket bits, with the words and their tags as leaves."""
    stack: list[tuple[str, list[Tree]]] = []
    roots: list[Tree] = []
    for row, (cell, tag, word) in enumerate(zip(cells, tags, words, strict=True)):
        opened, closed = _split(row, cell)
        stack.extend((label, []) for label in opened)
        if len(stack) > DEEPEST:
            raise CellError(row, f"more than {DEEPEST} levels of brackets")
        if not stack:
            raise CellError(row, "a word outside of the tree's brackets")
        stack[-1][1].append(Tree(tag.translate(IN_BRACKETS), word))
        for _ in range(closed):
            if not stack:
                raise CellError(row, f"'{cell}' closes a bracket that was never opened")
            label, children = stack.pop()
            (stack[-1][1] if stack else roots).append(Tree(label, tuple(children)))
    if stack:
        raise CellError(
            len(cells) - 1, f"{counted(len(stack), 'bracket')} left open at the end of the sentence"
        )
    if len(roots) != 1:
        raise CellError(0, f"{counted(len(roots), 'tree')} in one sentence; put one root above them")
    return roots[0]


def _split(row: int, cell: str) -> tuple[list[str], int]:
    match = _CELL.fullmatch(cell)
    if match is None or not cell:
        raise CellError(row, f"'{cell}' is not in start-end notation such as '(A0*', '*' or '*)'")
    return match[1].split("(")[1:], len(match[2])
