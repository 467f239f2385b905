"""CoNLL-2012 columns: OntoNotes (`*_gold_conll`, `*_gold_skel`) and PropBank (`*.gold_skel`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mtl.corpora.formats.columns import Block, Syntax, checked, read_blocks, refuse_restarts
from mtl.corpora.formats.lines import malformed
from mtl.corpora.formats.start_end import CellError, is_starred, require_verb, starred_spans, starred_tree
from mtl.corpora.formats.treebank import plain_word, rooted
from mtl.tasks.frames import without_verb
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Frame, Sentence

_MARKER = re.compile(r"#(begin|end) document([ \t]|$)")
_DOCUMENT, _PART, _NUMBER, _WORD, _TAG, _BIT, _LEMMA, _ROLESET, _NAME = 0, 1, 2, 3, 4, 5, 6, 7, 10
_FIXED_PROPBANK, _FIXED_ONTONOTES = 8, 11


def read_conll2012(path: Path) -> list[Sentence]:
    """Sentences with tags, trees and frames, and with entities in OntoNotes' layout.

    OntoNotes' columns are document, part, word number, word, tag, bracket bit, lemma, frameset, word sense,
    speaker, name, one column per predicate, and coreference. In PropBank's release, the columns of predicates
    follow the roleset. A masked word stays `[WORD]`. No names are annotated in OntoNotes' New Testament,
    which its columns do not show: leave it out when training NER.
    """
    counts: dict[tuple[str, str], int] = {}
    sentences = []
    blocks = list(read_blocks(path, Syntax(marker=lambda line: _MARKER.match(line.text) is not None)))
    if all(len(block.rows[0].fields) >= _FIXED_PROPBANK for block in blocks):
        refuse_restarts(path, blocks, _NUMBER)
    for block in blocks:
        line, fields = block.rows[0]
        width = len(fields)
        propbank = width == _FIXED_PROPBANK or (
            width > _FIXED_PROPBANK and is_starred(fields[_FIXED_PROPBANK])
        )
        if not propbank and width < _FIXED_ONTONOTES:
            what = f"{counted(width, 'column')}; CoNLL-2012 has 12 or more, PropBank 8 or more"
            raise malformed(path, line, what)
        document = fields[_DOCUMENT], fields[_PART]
        # PropBank's second column counts the sentences of a document, OntoNotes' its parts.
        number = counts[document] = counts.get(document, 0) + 1
        name = f"{document[0]}-{document[1]}" if propbank else f"{document[0]}-{document[1]}-{number:04d}"
        try:
            sentences.append(checked(path, block, _sentence(block, propbank, name)))
        except CellError as error:
            raise malformed(path, block.rows[error.row].line, str(error)) from error
    return sentences


def _sentence(block: Block, propbank: bool, name: str) -> Sentence:
    words = tuple([plain_word(word) for word in block.column(_WORD)])
    tags = tuple(block.column(_TAG))
    bits = block.column(_BIT)
    end = len(block.rows[0].fields)
    if not propbank and end > _FIXED_ONTONOTES and not any("*" in cell for cell in block.column(end - 1)):
        end -= 1  # coreference
    roles = range(_FIXED_PROPBANK if propbank else _FIXED_ONTONOTES, end)
    rolesets = [row for row, cell in enumerate(block.column(_ROLESET)) if cell != "-"]
    predicates: Sequence[int | None] = rolesets if len(rolesets) == len(roles) else [None] * len(roles)
    return Sentence(
        words=words,
        tags=tags,
        tree=rooted(starred_tree(bits, tags, words)) if any("(" in bit for bit in bits) else None,
        entities=None if propbank else starred_spans(block.column(_NAME)),
        frames=tuple([_frame(block, *frame) for frame in zip(roles, predicates, strict=True)]),
        id=name,
    )


def _frame(block: Block, column: int, predicate: int | None) -> Frame:
    """The frame of a column; `predicate` is known if each frameset has a column."""
    spans = starred_spans(block.column(column))
    if predicate is None:
        # Some of OntoNotes' framesets have no column, so the verb in the column tells whose it is.
        verbs = [span.start for span in spans if span.label == "V"]
        if not verbs:
            raise CellError(0, f"column {column + 1} has no '(V*)' to say which predicate it belongs to")
        predicate = verbs[0]
    require_verb(spans, predicate, column)
    fields = block.rows[predicate].fields
    sense = fields[_ROLESET]
    if sense == "-":
        raise CellError(predicate, f"a predicate without a frameset in column {_ROLESET + 1}")
    return Frame(predicate, sense if "." in sense else f"{fields[_LEMMA]}.{sense}", without_verb(spans))
