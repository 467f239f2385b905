"""CoNLL-U: tags, universal tags and basic dependencies (https://universaldependencies.org/format.html).

Other layers are read where this program wrote them (`own_layers`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from mtl.corpora.formats.columns import Block, Row, cell, checked, form, lines, read_blocks
from mtl.corpora.formats.lines import malformed
from mtl.corpora.formats.own_layers import comments_of, is_spelled, misc_of, with_own_layers
from tasks.sentence import Arcs, Sentence

_COMMENT = re.compile("#")
_NUMBER = re.compile(r"[0-9]{1,9}")
_NO_WORD = re.compile(r"[0-9]+[-.][0-9]+")
"""The ids of multiword ranges (1-2) and of empty nodes (1.1)."""
_SENT_ID = re.compile(r"#\s*sent_id\s*=\s*(\S.*?)\s*$")
_ID, _FORM, _UPOS, _XPOS, _HEAD, _DEPREL, _MISC, _COLUMNS = 0, 1, 3, 4, 6, 7, 9, 10


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
    sentence = Sentence(
        words=tuple([row.fields[_FORM] for row in words]),
        tags=xpos if column == "xpos" else upos,
        upos=upos,
        arcs=_arcs(path, words),
        id=ids[0] if ids else fallback,
    )
    sentence, problem = with_own_layers(sentence, block.comments, [row.fields[_MISC] for row in words])
    if problem is not None:
        raise malformed(path, block.rows[0].line, problem)
    return checked(path, Block(block.comments, words), sentence)


def _words(path: Path, block: Block) -> list[Row]:
    words: list[Row] = []
    for row in block.rows:
        if len(row.fields) != _COLUMNS:
            raise malformed(
                path, row.line, f"{len(row.fields)} columns; CoNLL-U has {_COLUMNS}, separated by tabs"
            )
        index = row.fields[_ID]
        if _NO_WORD.fullmatch(index):
            continue
        if index != str(len(words) + 1):
            raise malformed(path, row.line, f"word id '{index}' where {len(words) + 1} is expected")
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
        if not _NUMBER.fullmatch(value) or int(value) > len(words):
            raise malformed(path, row.line, f"head {value!r}; it must be 0 (the root) to {len(words)}")
        heads.append(int(value))
    return Arcs(tuple(heads), tuple([row.fields[_DEPREL] for row in words]))


def to_conllu(sentence: Sentence) -> str:
    """One sentence in CoNLL-U, with the empty line that ends it.

    `# text` is the sentence's text, or its words with blanks between them where that is not known. Layers
    without a column are in comments and MISC (`own_layers`). Tabs, line ends and control characters in a
    column become `_`; other white space does in labels only. Raises `InputError` where entities overlap,
    which BIO cannot hold.
    """
    words = [form(word) for word in sentence.words]
    comments = [f"# sent_id = {cell(sentence.id)}"] if sentence.id else []
    text = sentence.text if is_spelled(sentence.text, sentence.words) else " ".join(words)
    comments.append(f"# text = {form(text)}")
    comments += comments_of(sentence)
    empty = ["_"] * len(words)
    columns = (
        [str(number) for number in range(1, len(words) + 1)],
        words,
        empty,
        [cell(tag) for tag in sentence.upos or empty],
        [cell(tag) for tag in sentence.tags or empty],
        empty,
        empty if sentence.arcs is None else [str(head) for head in sentence.arcs.heads],
        empty if sentence.arcs is None else [cell(relation) for relation in sentence.arcs.relations],
        empty,
        misc_of(sentence),
    )
    return lines([*comments, *("\t".join(row) for row in zip(*columns, strict=True))])
