"""CoNLL-2005 propositions: for each predicate, a column of arguments in start-end notation."""

from __future__ import annotations

import re
from pathlib import Path

from mtl.corpora.formats.columns import Block, Syntax, cell, checked, lines, read_blocks, sentence_id
from mtl.corpora.formats.lines import malformed
from mtl.corpora.formats.start_end import CellError, is_starred, require_verb, starred_spans
from mtl.corpora.formats.treebank import label_from_brackets, label_in_brackets, plain_word
from mtl.errors import InputError
from mtl.tasks.frames import without_verb
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Frame, Sentence, Span

_NOT_IN_A_TARGET = re.compile(r"[-*()]")
"""`-` marks words that are not predicates, and the others would be taken for arguments."""
_IN_ROLES = str.maketrans({"*": "%2A", "\\": "%5C"})
"""Characters with a meaning for srl-eval.pl in roles, besides brackets."""
_FRAMESET = re.compile(r"\d+|XX")


def read_conll2005(path: Path, words: Path | None = None) -> list[Sentence]:
    """Sentences with frames, from columns of predicates and arguments, with or without words before them.

    If the first column already holds the predicates, the words come from `words` (one per line), by default
    the file of the same name with the suffix `.words`. A frameset number in the column before the predicate's
    lemma gives the sense (go.02); without one the sense is `None`.
    """
    blocks = list(read_blocks(path, Syntax()))
    predicates = [_predicate_column(path, block) for block in blocks]
    alone = [column == 0 for column in predicates]
    if any(alone) and not all(alone):
        block = blocks[alone.index(not alone[0])]
        raise malformed(path, block.rows[0].line, "words before the predicates in some sentences only")
    texts = _words(path, words, blocks) if any(alone) else [block.column(0) for block in blocks]
    sentences = []
    for block, column, text in zip(blocks, predicates, texts, strict=True):
        try:
            frames = _frames(block, column)
        except CellError as error:
            raise malformed(path, block.rows[error.row].line, str(error)) from error
        sentence = Sentence(tuple(map(plain_word, text)), frames=frames, id=sentence_id(path, block))
        sentences.append(checked(path, block, sentence))
    return sentences


def _predicate_column(path: Path, block: Block) -> int:
    """The column of predicates, after which each predicate has a column of arguments."""
    width = len(block.rows[0].fields)
    column = width - 1
    while column > 0 and all(map(is_starred, block.column(column))):
        column -= 1
    predicates = sum(cell != "-" for cell in block.column(column))
    if predicates != width - 1 - column:
        raise malformed(
            path,
            block.rows[0].line,
            f"{counted(predicates, 'predicate')} in column {column + 1}, but "
            f"{counted(width - 1 - column, 'column')} of arguments; give each predicate its column, and '-' "
            "to all other words",
        )
    return column


def _frames(block: Block, column: int) -> tuple[Frame, ...]:
    rows = [row for row, cell in enumerate(block.column(column)) if cell != "-"]
    frames = []
    for order, row in enumerate(rows, start=1):
        fields = block.rows[row].fields
        numbered = column > 1 and _FRAMESET.fullmatch(fields[column - 1])
        sense = f"{fields[column]}.{fields[column - 1]}" if numbered else None
        spans = starred_spans(block.column(column + order))
        require_verb(spans, row, column + order)
        arguments = without_verb([span._replace(label=label_from_brackets(span.label)) for span in spans])
        frames.append(Frame(row, sense, arguments))
    return tuple(frames)


def _words(path: Path, words: Path | None, blocks: list[Block]) -> list[list[str]]:
    beside = words or path.with_suffix(".words")
    if not beside.is_file():
        raise InputError(f"{path}: no words in its columns; put them into {beside}, one per line")
    others = list(read_blocks(beside, Syntax()))
    for row in (row for other in others for row in other.rows):
        if len(row.fields) > 1:
            what = f"{counted(len(row.fields), 'column')}, where one word is expected"
            raise malformed(beside, row.line, what)
    for block, other in zip(blocks, others, strict=False):
        if len(block.rows) != len(other.rows):
            what = f"{counted(len(other.rows), 'word')} for {counted(len(block.rows), 'row')} in {path}"
            raise malformed(beside, other.rows[0].line, what)
    if len(blocks) != len(others):
        longer, its_blocks = (beside, others) if len(others) > len(blocks) else (path, blocks)
        first = its_blocks[min(len(others), len(blocks))].rows[0]  # the first without a partner
        what = f"{beside} has {counted(len(others), 'sentence')}, and {path} {len(blocks)}"
        raise malformed(longer, first.line, what)
    return [other.column(0) for other in others]


def to_props(sentence: Sentence) -> str:
    """Predicates and arguments of one sentence, with the empty line that ends it.

    The sentence has at most one frame per predicate, without overlapping arguments. Frames are written in the
    order of their predicates. A predicate outside all of its arguments gets `V`. Brackets, stars and
    backslashes in roles are quoted (`%28`).
    """
    frames = sorted(sentence.frames or (), key=lambda frame: frame.predicate)
    targets = ["-"] * len(sentence)
    for frame in frames:
        targets[frame.predicate] = _NOT_IN_A_TARGET.sub("_", cell(sentence.words[frame.predicate]))
    columns = zip(targets, *(_column(sentence, frame) for frame in frames), strict=True)
    return lines(" ".join(row) for row in columns)


def _column(sentence: Sentence, frame: Frame) -> list[str]:
    spans = list(without_verb(frame.arguments))
    if not any(start <= frame.predicate < end for start, end, _ in spans):
        # V does not count, but an argument with V inside it would be taken for a discontinuous one.
        spans.append(Span(frame.predicate, frame.predicate + 1, "V"))
    column = ["*"] * len(sentence)
    for start, end, label in spans:
        column[start] = f"({label_in_brackets(label).translate(_IN_ROLES)}{column[start]}"
        column[end - 1] += ")"
    return column
