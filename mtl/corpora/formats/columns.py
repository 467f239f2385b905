"""Column files: one word per line, a blank line after each sentence; a label or tag of entities per word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mtl.corpora.formats.lines import (
    BLANKS,
    documents_of,
    fault,
    is_blank,
    label_fault,
    malformed,
    name_of,
    read_lines,
)
from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import MadeUpId, Sentence

MARKER = re.compile(r"-DOCSTART-([ \t]|$)")
"""The beginning of the line between documents of CoNLL-2003, which is not a word."""
METADATA = re.compile(r"#[ \t]+(id[ \t]|[^ \t=]+([ \t]+[^ \t=]+)*[ \t]+=([ \t]|$))")
"""Comments that are not taken for rows, however many columns they have: `# KEY = VALUE`, `# id X`."""
_BLANKS = re.compile(r"[ \t]+")
_SENT_ID = re.compile(
    r"#[ \t]*(?:sent_id[ \t]*=[ \t]*([^ \t].*?)|id[ \t]+([^ \t=]+)(?:[ \t]+domain=.*)?)[ \t]*$"
)
_NEWDOC = re.compile(r"#[ \t]*newdoc(?:[ \t]+id)?(?:[ \t]*=[ \t]*(.*?))?[ \t]*")
"""The comment that begins a document, as in CoNLL-U: `# newdoc id = X` or `# newdoc`."""
_COMMENT_BETWEEN_ROWS = (
    "a comment between the rows of a sentence; put it before the first, and a blank line between sentences"
)
_NOT_IN_A_CELL = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_NOT_IN_A_FORM = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class ColumnRow(NamedTuple):
    """One line of a column file; `line` counts from 1."""

    line: int
    fields: list[str]


class Line(NamedTuple):
    """A line that is not a row, or not known to be one; `line` counts from 1."""

    line: int
    text: str


class SentenceRows(NamedTuple):
    """The rows of one sentence and the comments before them; `number` counts a file's sentences from 1.

    `document` is the one that the latest comment `# newdoc id = X` or `# newdoc` names, or the number of the
    latest marker among several of a file; empty without either.
    """

    comments: list[Line]
    rows: list[ColumnRow]
    number: int
    document: str

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


def rows_as_text(rows: Iterable[str]) -> str:
    """The rows of a sentence as text, with the empty line that ends it."""
    return "".join(f"{row}\n" for row in rows) + "\n"


def checked(path: Path, block: SentenceRows, sentence: Sentence) -> Sentence:
    """The sentence of a block, one row per word, with its place; raises `InputError` for its first fault."""
    problem = fault(sentence)
    if problem is not None:
        raise malformed(path, block.rows[problem.word or 0].line, problem.what)
    return replace(sentence, place=f"{path}:{block.rows[0].line}")


def read_blocks(path: Path, syntax: Syntax) -> Iterator[SentenceRows]:
    """The sentences of a column file: blocks of rows between blank lines and markers.

    Whether a line is a comment depends on its place and its number of columns. Comments come before the first
    row of a sentence, and belong only to that sentence. Raises `InputError` for a row with more or fewer
    columns than the first of its sentence, and for a comment between rows.
    """
    stretches = list(_stretches(path, syntax.marker))
    blocks = [lines for _, lines in stretches]
    shapes = [_shape(lines, syntax.tabs) for lines in blocks]
    usual = _usual(blocks, shapes, syntax.tabs)
    # A marker at the top of a file, and no other one, does not separate documents.
    marked = any(stretch.markers > 1 for stretch in stretches)
    number = documents = 0
    document, document_of = "", documents_of(path)
    for (markers, lines), shape in zip(stretches, shapes, strict=True):
        if marked and not documents:
            document = document_of(markers)
        tabs, width = shape or usual
        comments: list[Line] = []
        rows: list[ColumnRow] = []
        for line in lines:
            fields = _fields(line.text, tabs)
            if line.text.startswith("#") and syntax.comment(line, fields, tabs, width):
                if rows:
                    raise malformed(path, line.line, _COMMENT_BETWEEN_ROWS)
                comments.append(line)
                if match := _NEWDOC.fullmatch(line.text):
                    documents += 1
                    document = match[1] or document_of(documents)
                continue
            if rows and len(fields) != len(rows[0].fields) and not (tabs and syntax.ragged):
                raise malformed(path, line.line, _unequal(fields, rows[0], tabs))
            rows.append(ColumnRow(line.line, fields))
        if rows:
            number += 1
            yield SentenceRows(comments, rows, number, document)


def sentence_id(path: Path, block: SentenceRows) -> str:
    """The id in a block's comments (`# sent_id = X`, or MultiCoNER's `# id X`); made up: FILE-NUMBER.

    Raises `InputError` for a second id.
    """
    found = [(line, match) for line, text in block.comments if (match := _SENT_ID.match(text))]
    if len(found) > 1:
        raise malformed(
            path,
            found[1][0],
            "a second id of one sentence; put a blank line between sentences, or take it out",
        )
    if not found:
        return MadeUpId(f"{name_of(path)}-{block.number:04d}")
    return found[0][1][1] or found[0][1][2]


class SentenceLabel:
    """Where the label of each sentence stands: in a comment, or in a column of its rows.

    A comment is `# KEY = LABEL`, `# KEY: LABEL` or, as this program writes it, `# label KEY = LABEL`. In a
    column (counted from 1), all rows of a sentence have the label, or `_`. Neither: there are no labels.
    """

    def __init__(self, comment: str | None = None, column: int | None = None) -> None:
        self._key, self._column, self._found = comment, column, False
        key = re.escape(comment or "")
        self._comment = re.compile(rf"#[ \t]*(?:label[ \t]+)?{key}[ \t]*[=:][ \t]*(.*?)[ \t]*")

    def is_comment(self, text: str) -> bool:
        """Whether a line is the comment with the label, however many columns it has."""
        return self._key is not None and self._comment.fullmatch(text) is not None

    def of(self, path: Path, block: SentenceRows) -> str | None:
        """The label of a sentence; raises `InputError` for several, and for one that is no single word."""
        found = []
        if self._key is not None:
            each = ((line, self._comment.fullmatch(text)) for line, text in block.comments)
            found += [(line, match[1]) for line, match in each if match]
        if self._column is not None:
            cells = [(row.line, row.fields[self._column - 1]) for row in block.rows]
            found += [(line, label) for line, label in cells if label != "_"]
        for line, label in found:
            self._found = True
            if label != found[0][1]:
                what = f"'{label}' and, in line {found[0][0]}, '{found[0][1]}' are labels of one sentence"
                raise malformed(path, line, f"{what}; write one")
            if wrong := label_fault(OF_SENTENCE, label):
                raise malformed(path, line, f"the sentence's label: {wrong}")
        return found[0][1] if found else None

    def require_found(self, path: Path) -> None:
        """Raise `InputError` if labels were looked for in all sentences of a file, and there was none."""
        if not self._found and (self._key is not None or self._column is not None):
            where = (
                f"comment '# {self._key} = LABEL'"
                if self._key is not None
                else f"label in column {self._column}"
            )
            raise InputError(f"{path}: no sentence has a {where}; check its name")


OF_SENTENCE = "classify"
"""The layer with the label of a sentence: that of tasks of kind `class`."""


def require_columns(path: Path, blocks: Sequence[SentenceRows], needed: int, how: str) -> None:
    """Raise `InputError` for the first row with fewer columns than needed; `how` says what to do about it."""
    for row in (row for block in blocks for row in block.rows):
        if len(row.fields) < needed:
            what = f"{counted(len(row.fields), 'column')}, where {needed} are expected; {how}"
            raise malformed(path, row.line, what)


def refuse_shared_columns(path: Path, blocks: Sequence[SentenceRows], columns: Mapping[str, int]) -> None:
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


def refuse_restarts(path: Path, blocks: Sequence[SentenceRows], column: int) -> None:
    """Raise `InputError` if a column that numbers the words of all sentences restarts within a sentence."""
    cells = [block.column(column) for block in blocks]
    if not all(cell.isascii() and cell.isdigit() for of_block in cells for cell in of_block):
        return
    for block, of_block in zip(blocks, cells, strict=True):
        for row, before in zip(block.rows[1:], of_block, strict=False):
            if int(row.fields[column][:9]) <= int(before[:9]):
                what = f"word number {row.fields[column]} after {before}; put a blank line between sentences"
                raise malformed(path, row.line, what)


class _Stretch(NamedTuple):
    """Lines between blank lines and markers, and the number of markers before them in the file."""

    markers: int
    lines: list[Line]


def _stretches(path: Path, is_marker: Callable[[Line], bool]) -> Iterator[_Stretch]:
    """The lines of a file between blank lines and markers."""
    lines: list[Line] = []
    markers = 0
    for number, text in enumerate(read_lines(path, rows=True), start=1):
        line = Line(number, text)
        marked = not is_blank(text) and is_marker(line)
        if not is_blank(text) and not marked:
            lines.append(line)
        elif lines:
            yield _Stretch(markers, lines)
            lines = []
        markers += marked
    if lines:
        yield _Stretch(markers, lines)


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


def _unequal(fields: list[str], first: ColumnRow, tabs: bool) -> str:
    by = "tabs, as in the sentence's first row" if tabs else "blanks"
    how = f"give every row of a sentence the same columns, separated by {by}"
    if first.fields[0].startswith("#"):
        how = f"if line {first.line} is a comment, begin it with '# '"
    return (
        f"{counted(len(fields), 'column')}, where the sentence's first row has {len(first.fields)}; {how}, "
        "and put a blank line between sentences"
    )


ROLES = ("word", "label")
ROLE_OF_SENTENCE = "sentence"
"""The role of a column with the label of the sentence in each row."""
_SEPARATED = re.compile(r"[^,;|][,;|][^,;|]")
_HEADER = (
    frozenset(["word", "words", "token", "tokens", "form", "forms", "text"]),
    frozenset(["label", "labels", "tag", "tags", "pos", "upos", "xpos", "ner", "chunk", "lemma"]),
)
"""Names of the columns of words and of labels in the first line of a table."""


def read_label_columns(
    path: Path, columns: Mapping[str, int] | None = None, comment: str | None = None
) -> list[Sentence]:
    """Sentences with a label per word (`Sentence.tags`) and, if asked for, a label of the sentence.

    `columns` are those of the `word` (default: 1), of its `label` (default: the last) and, if there is one,
    of the label of the `sentence`, counted from 1. `comment` is the key of the comment with that label; with
    it, a file may have words alone. A line that begins with `# ` and has another number of columns than the
    rows is a comment, which comes before the first row of its sentence. Lines with the marker `-DOCSTART-`
    are not words; they end a sentence. Raises `InputError`, with the line, for a row that lacks one of these
    columns, and for a first row that names them.
    """
    at = {"word": 1, "label": 0, **(columns or {})}
    of_sentence = SentenceLabel(comment, at.get(ROLE_OF_SENTENCE))

    def is_comment(line: Line, fields: list[str], tabs: bool, width: int) -> bool:
        return of_sentence.is_comment(line.text) or _is_comment(line, fields, tabs, width)

    blocks = list(read_blocks(path, Syntax(lambda line: MARKER.match(line.text) is not None, is_comment)))
    rows = [row for block in blocks for row in block.rows]
    words_alone = comment is not None and not columns and all(len(row.fields) == 1 for row in rows)
    if words_alone and 2 * sum(_SEPARATED.search(row.fields[0]) is not None for row in rows) > len(rows):
        raise malformed(path, rows[0].line, "separate the columns by spaces or tabs")
    if not words_alone:
        require_columns(path, blocks, max(2, *at.values()), "write a label behind each word")
        refuse_shared_columns(path, blocks, at)
    for row in rows[:1] if not words_alone else ():
        word, label = (row.fields[at[role] - 1] for role in ROLES)
        if word.lower() in _HEADER[0] and label.lower() in _HEADER[1]:
            raise malformed(path, row.line, f"'{word}' and '{label}' name the columns: take the header out")
    if at["word"] > 1:
        refuse_restarts(path, blocks, 0)
    sentences = [
        checked(
            path,
            block,
            Sentence(
                words=tuple(block.column(at["word"] - 1)),
                layers={OF_SENTENCE: of_sentence.of(path, block)},
                tags=None if words_alone else tuple(block.column(at["label"] - 1)),
                id=sentence_id(path, block),
                document=block.document,
            ),
        )
        for block in blocks
    ]
    of_sentence.require_found(path)
    return sentences


def _is_comment(line: Line, fields: list[str], tabs: bool, width: int) -> bool:
    if width or len(fields) < len(ROLES):
        return line.text.startswith("# ") and len(fields) != width
    return not tabs and METADATA.match(line.text) is not None  # all lines of the file begin with '#'
