"""CoNLL-U: tags, universal tags and basic dependencies (https://universaldependencies.org/format.html)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from mtl.corpora.formats.columns import Block, Row, read_blocks
from mtl.corpora.formats.lines import malformed
from tasks.sentence import Arcs, Sentence

_COMMENT = re.compile("#")
_SENT_ID = re.compile(r"#\s*sent_id\s*=\s*(\S.*?)\s*$")
_ID, _FORM, _UPOS, _XPOS, _HEAD, _DEPREL, _COLUMNS = 0, 1, 3, 4, 6, 7, 10


def read_conllu(path: Path, column: Literal["xpos", "upos"] = "xpos") -> list[Sentence]:
    """Sentences with tags (from `column`), universal tags and arcs, relations with their subtypes.

    Multiword ranges and empty nodes are no words here and are left out. A column that holds nothing but `_`
    in a sentence is not annotated there.
    """
    sentences = []
    for number, block in enumerate(read_blocks(path, _COMMENT), start=1):
        sentences.append(_sentence(path, block, column, f"{path.stem}-{number:04d}"))
    return sentences


def _sentence(path: Path, block: Block, column: str, fallback: str) -> Sentence:
    words = _words(path, block)
    upos, xpos = _annotated(words, _UPOS), _annotated(words, _XPOS)
    ids = [match[1] for comment in block.comments if (match := _SENT_ID.match(comment))]
    return Sentence(
        words=tuple([row.fields[_FORM] for row in words]),
        tags=xpos if column == "xpos" else upos,
        upos=upos,
        arcs=_arcs(path, words),
        id=ids[0] if ids else fallback,
    )


def _words(path: Path, block: Block) -> list[Row]:
    words: list[Row] = []
    for row in block.rows:
        if len(row.fields) != _COLUMNS:
            raise malformed(
                path, row.line, f"{len(row.fields)} columns; CoNLL-U has {_COLUMNS}, separated by tabs"
            )
        index = row.fields[_ID]
        if "-" in index or "." in index:
            continue
        if index != str(len(words) + 1):
            raise malformed(path, row.line, f"word id '{index}' where {len(words) + 1} is due")
        words.append(row)
    if not words:
        raise malformed(path, block.rows[0].line, "a sentence without words; take it out")
    return words


def _annotated(words: list[Row], column: int) -> tuple[str, ...] | None:
    values = tuple([row.fields[column] for row in words])
    return None if all(value == "_" for value in values) else values


def _arcs(path: Path, words: list[Row]) -> Arcs | None:
    if all(row.fields[_HEAD] == "_" for row in words):
        return None
    heads = []
    for row in words:
        value = row.fields[_HEAD]
        if not (value.isascii() and value.isdigit()) or int(value) > len(words):
            raise malformed(path, row.line, f"head '{value}'; it must be 0 (the root) to {len(words)}")
        heads.append(int(value))
    on_cycle = cycle(heads)
    if on_cycle is not None:
        raise malformed(path, words[on_cycle].line, "the heads form a cycle through this word; mend one")
    return Arcs(tuple(heads), tuple([row.fields[_DEPREL] for row in words]))


def cycle(heads: list[int]) -> int | None:
    """A word (from 0) on a cycle of heads (from 1, 0 the root), or `None` if every word reaches the root."""
    seen = [0] * (len(heads) + 1)
    for start in range(1, len(heads) + 1):
        word = start
        while word and not seen[word]:
            seen[word] = start
            word = heads[word - 1]
        if word and seen[word] == start:
            return word - 1
    return None
