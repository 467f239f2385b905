"""Column files: one word a line, a blank line after each sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mtl.corpora.formats.lines import malformed, read_lines
from mtl.corpora.formats.soundness import fault
from tasks.sentence import Sentence

_NOT_IN_A_CELL = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_NOT_IN_A_FORM = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class Row(NamedTuple):
    """One line of a column file; `line` counts from 1."""

    line: int
    fields: list[str]


class Block(NamedTuple):
    """The rows of one sentence and the comment lines before and between them."""

    comments: list[str]
    rows: list[Row]

    def column(self, index: int) -> list[str]:
        return [row.fields[index] for row in self.rows]


def cell(text: str) -> str:
    """Text as one column: blanks and control characters become `_`, and so does empty text."""
    return _NOT_IN_A_CELL.sub("_", text) or "_"


def form(text: str) -> str:
    """A word, or a text, as one column of those that tabs separate; see `cell`. Blanks within it are kept."""
    return _NOT_IN_A_FORM.sub("_", text) or "_"


def lines(rows: Iterable[str]) -> str:
    """The rows of one sentence as text, with the empty line that ends it."""
    return "".join(f"{row}\n" for row in rows) + "\n"


def checked(path: Path, block: Block, sentence: Sentence) -> Sentence:
    """The sentence of a block with a row per word, and its place; raises `InputError` at its first fault."""
    problem = fault(sentence)
    if problem is not None:
        raise malformed(path, block.rows[problem.word or 0].line, problem.what)
    return replace(sentence, place=f"{path}:{block.rows[0].line}")


def read_blocks(path: Path, comment: re.Pattern[str], ragged: bool = False) -> Iterator[Block]:
    """The sentences of a column file; columns are split at tabs if a line has any, else at white space.

    Raises `InputError` where a row has not as many columns as its sentence's first, unless `ragged`.
    """
    comments: list[str] = []
    rows: list[Row] = []
    for number, text in enumerate(read_lines(path), start=1):
        if text and not text.isspace():
            if comment.match(text):
                comments.append(text)
                continue
            fields = text.split("\t") if "\t" in text else text.split()
            if rows and not ragged and len(fields) != len(rows[0].fields):
                raise malformed(
                    path,
                    number,
                    f"{len(fields)} columns, where the sentence's first row has {len(rows[0].fields)}; "
                    "give every row of a sentence the same columns, and a blank line between sentences",
                )
            rows.append(Row(number, fields))
        elif rows:
            yield Block(comments, rows)
            comments, rows = [], []
    if rows:
        yield Block(comments, rows)
