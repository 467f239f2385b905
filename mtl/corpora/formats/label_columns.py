"""Columns of words and of one label per word, whatever the labels are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mtl.corpora.formats.columns import (
    MARKER,
    METADATA,
    Line,
    Syntax,
    checked,
    read_blocks,
    refuse_restarts,
    refuse_shared,
    require_columns,
    sentence_id,
)
from mtl.corpora.formats.lines import malformed
from mtl.tasks.sentence import Sentence

ROLES = ("word", "label")
_HEADER = (
    frozenset(["word", "words", "token", "tokens", "form", "forms", "text"]),
    frozenset(["label", "labels", "tag", "tags", "pos", "upos", "xpos", "ner", "chunk", "lemma"]),
)
"""Names of the columns of words and of labels in the first line of a table."""


def read_label_columns(path: Path, columns: Mapping[str, int] | None = None) -> list[Sentence]:
    """Sentences with a label per word (`Sentence.tags`).

    `columns` are those of the `word` (default: 1) and of its `label` (default: the last), counted from 1. A
    line that begins with `# ` and has another number of columns than the rows is a comment, which comes
    before the first row of its sentence. Lines with the marker `-DOCSTART-` are not words; they end a
    sentence. Raises `InputError`, with the line, for a row that lacks one of these columns, and for a first
    row that names them.
    """
    at = {"word": 1, "label": 0, **(columns or {})}
    blocks = list(read_blocks(path, Syntax(lambda line: MARKER.match(line.text) is not None, _is_comment)))
    require_columns(path, blocks, max(2, *at.values()), "name word and label")
    refuse_shared(path, blocks, at)
    for row in blocks[0].rows[:1] if blocks else ():
        word, label = (row.fields[at[role] - 1] for role in ROLES)
        if word.lower() in _HEADER[0] and label.lower() in _HEADER[1]:
            raise malformed(path, row.line, f"'{word}' and '{label}' name the columns: take the header out")
    if at["word"] > 1:
        refuse_restarts(path, blocks, 0)
    return [
        checked(
            path,
            block,
            Sentence(
                words=tuple(block.column(at["word"] - 1)),
                tags=tuple(block.column(at["label"] - 1)),
                id=sentence_id(path, block),
            ),
        )
        for block in blocks
    ]


def _is_comment(line: Line, fields: list[str], tabs: bool, width: int) -> bool:
    if width or len(fields) < len(ROLES):
        return line.text.startswith("# ") and len(fields) != width
    return not tabs and METADATA.match(line.text) is not None  # all lines of the file begin with '#'
