"""Column files: one word per line, a blank line after each sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mtl.corpora.formats.lines import BLANKS, is_blank, malformed, name_of, read_lines
from mtl.corpora.formats.soundness import fault
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence

MARKER = re.compile(r"-DOCSTART-([ \t]|$)")
"""The beginning of the line between documents of CoNLL-2003, which is not a word."""
METADATA = re.compile(r"#[ \t]+(id[ \t]|[^ \t=]+([ \t]+[^ \t=]+)*[ \t]+=([ \t]|$))")
"""Comments that are not taken for rows, however many columns they have: `# KEY = VALUE`, `# id X`."""
_BLANKS = re.compile(r"[ \t]+")
_SENT_ID = re.compile(
    r"#[ \t]*(?:sent_id[ \t]*=[ \t]*([^ \t].*?)|id[ \t]+([^ \t=]+)(?:[ \t]+domain=.*)?)[ \t]*$"
)
_COMMENT_BETWEEN_ROWS = (
    "a comment between the rows of a sentence; put it before the first, and a blank line between sentences"
)
_NOT_IN_A_CELL = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_NOT_IN_A_FORM = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class Row(NamedTuple):
    """One line of a column file; `line` counts from 1."""

    line: int
    fields: list[str]


class Line(NamedTuple):
    """A line that is not a row, or not known to be one; `line` counts from 1."""

    line: int
    text: str


class Block(NamedTuple):
    """The rows of one sentence and the comments before them; `number` counts a file's sentences from 1."""

    comments: list[Line]
    rows: list[Row]
    number: int

    def column(self, index: int) -> list[str]:
        return [row.fields[index] for row in self.rows]


class Syntax(NamedTuple):
    """What the lines of a column format may be, besides rows and blank lines.

    `marker` decides whether a line separates sentences (`-DOCSTART-`); such lines are left out. `comment`
    decides whether a line that begins with `#` is a comment, from the line's columns, whether they are
    separated by tabs, and the number of columns that rows have (0: not known). Comments come before the first
    row of their sentence. With `tabs`, columns are always separated by tabs; otherwise by tabs if the first
    row of the sentence has any, and by blanks if not. With `ragged`, rows of columns separated by tabs may
    differ in their number of columns.
    """

    marker: Callable[[Line], bool] = lambda line: False
    comment: Callable[[Line, list[str], bool, int], bool] = lambda line, fields, tabs, width: False
    tabs: bool = False
    ragged: bool = False


def cell(text: str) -> str:
    """Text as a cell: each run of white space or control characters becomes `_`, and so does empty text."""
    return _NOT_IN_A_CELL.sub("_", text) or "_"


def form(text: str) -> str:
    """Text as a cell between tabs: control characters become `_`, other white space is kept."""
    return _NOT_IN_A_FORM.sub("_", text) or "_"


def lines(rows: Iterable[str]) -> str:
    """The rows of a sentence as text, with the empty line that ends it."""
    return "".join(f"{row}\n" for row in rows) + "\n"


def checked(path: Path, block: Block, sentence: Sentence) -> Sentence:
    """The sentence of a block, one row per word, with its place; raises `InputError` for its first fault."""
    problem = fault(sentence)
    if problem is not None:
        raise malformed(path, block.rows[problem.word or 0].line, problem.what)
    return replace(sentence, place=f"{path}:{block.rows[0].line}")


def read_blocks(path: Path, syntax: Syntax) -> Iterator[Block]:
    """The sentences of a column file: blocks of rows between blank lines and markers.

    Whether a line is a comment depends on its place and its number of columns. Comments come before the first
    row of a sentence, and belong only to that sentence. Raises `InputError` for a row with more or fewer
    columns than the first of its sentence, and for a comment between rows.
    """
    blocks = list(_stretches(path, syntax.marker))
    shapes = [_shape(lines, syntax.tabs) for lines in blocks]
    usual = _usual(blocks, shapes, syntax.tabs)
    number = 0
    for lines, shape in zip(blocks, shapes, strict=True):
        tabs, width = shape or usual
        comments: list[Line] = []
        rows: list[Row] = []
        for line in lines:
            fields = _fields(line.text, tabs)
            if line.text.startswith("#") and syntax.comment(line, fields, tabs, width):
                if rows:
                    raise malformed(path, line.line, _COMMENT_BETWEEN_ROWS)
                comments.append(line)
                continue
            if rows and len(fields) != len(rows[0].fields) and not (tabs and syntax.ragged):
                raise malformed(path, line.line, _unequal(fields, rows[0], tabs))
            rows.append(Row(line.line, fields))
        if rows:
            number += 1
            yield Block(comments, rows, number)


def sentence_id(path: Path, block: Block) -> str:
    """The id in a block's comments (`# sent_id = X`, or MultiCoNER's `# id X`), by default FILE-NUMBER.

    Raises `InputError` for a second id.
    """
    found = [(line, match) for line, text in block.comments if (match := _SENT_ID.match(text))]
    if len(found) > 1:
        raise malformed(
            path,
            found[1][0],
            "a second id of one sentence; put a blank line between sentences, or take it out",
        )
    return (found[0][1][1] or found[0][1][2]) if found else f"{name_of(path)}-{block.number:04d}"


def require_columns(path: Path, blocks: Sequence[Block], needed: int, how: str) -> None:
    """Raise `InputError` for the first row with fewer columns than needed; `how` says what to do about it."""
    for row in (row for block in blocks for row in block.rows):
        if len(row.fields) < needed:
            what = f"{counted(len(row.fields), 'column')}, where {needed} are expected; {how}"
            raise malformed(path, row.line, what)


def refuse_shared(path: Path, blocks: Sequence[Block], columns: Mapping[str, int]) -> None:
    """Raise `InputError` if one column has two roles, which happens if only one of them is named.

    `columns` are the columns by role, counted from 1; 0 is the last one of a row.
    """
    for row in (row for block in blocks for row in block.rows):
        roles: dict[int, str] = {}
        for role, column in columns.items():
            other = roles.setdefault(column or len(row.fields), role)
            if other != role:
                at = column or len(row.fields)
                what = f"{other} and {role} are both column {at}; name the columns of both"
                raise malformed(path, row.line, what)


def refuse_restarts(path: Path, blocks: Sequence[Block], column: int) -> None:
    """Raise `InputError` if a column that numbers the words of all sentences restarts within a sentence."""
    cells = [block.column(column) for block in blocks]
    if not all(cell.isascii() and cell.isdigit() for of_block in cells for cell in of_block):
        return
    for block, of_block in zip(blocks, cells, strict=True):
        for row, before in zip(block.rows[1:], of_block, strict=False):
            if int(row.fields[column][:9]) <= int(before[:9]):
                what = f"word number {row.fields[column]} after {before}; put a blank line between sentences"
                raise malformed(path, row.line, what)


def _stretches(path: Path, is_marker: Callable[[Line], bool]) -> Iterator[list[Line]]:
    """The lines of a file between blank lines and markers."""
    lines: list[Line] = []
    for number, text in enumerate(read_lines(path, rows=True), start=1):
        if not is_blank(text) and not is_marker(line := Line(number, text)):
            lines.append(line)
        elif lines:
            yield lines
            lines = []
    if lines:
        yield lines


def _shape(lines: list[Line], tabs: bool) -> tuple[bool, int] | None:
    """Whether tabs separate the columns of a sentence, and their number, from its first line without `#`."""
    first = next((text for _, text in lines if not text.startswith("#")), None)
    if first is None:
        return None
    tabs = tabs or "\t" in first.strip(" ")
    return tabs, len(_fields(first, tabs))


def _usual(
    blocks: list[list[Line]], shapes: Sequence[tuple[bool, int] | None], tabs: bool
) -> tuple[bool, int]:
    """The most frequent shape of a file's sentences, assumed for sentences whose lines all begin with `#`."""
    known = Counter(shape for shape in shapes if shape is not None)
    if known:
        return known.most_common(1)[0][0]
    return tabs or any("\t" in text for lines in blocks for _, text in lines), 0


def _fields(text: str, tabs: bool) -> list[str]:
    if tabs:  # blanks next to a tab are padding
        return [field.strip(" ") for field in text.split("\t")] if " " in text else text.split("\t")
    return _BLANKS.split(text.strip(BLANKS))


def _unequal(fields: list[str], first: Row, tabs: bool) -> str:
    by = "tabs, as in the sentence's first row" if tabs else "blanks"
    how = f"give every row of a sentence the same columns, separated by {by}"
    if first.fields[0].startswith("#"):
        how = f"if line {first.line} is a comment, begin it with '# '"
    return (
        f"{counted(len(fields), 'column')}, where the sentence's first row has {len(first.fields)}; {how}, "
        "and put a blank line between sentences"
    )
