"""CoNLL-2002, CoNLL-2003 and similar columns: a word in one column, its entity tag in another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from mtl.corpora.formats.columns import (
    MARKER,
    METADATA,
    OF_SENTENCE,
    ROLE_OF_SENTENCE,
    ColumnRow,
    Line,
    SentenceLabel,
    SentenceRows,
    Syntax,
    checked,
    read_blocks,
    refuse_restarts,
    refuse_shared_columns,
    require_columns,
    sentence_id,
)
from mtl.corpora.formats.dependencies import NO_WORD
from mtl.corpora.formats.lines import BLANKS, malformed
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.tasks.spans import Scheme, TagError, detect, entities_of_tags, is_tag, repaired

ROLES = ("word", "entity", "tag", ROLE_OF_SENTENCE)
"""What a column may hold."""
REPAIRED = "tag repaired as conlleval takes it (an entity without its B-, or without its end)"


class OtherColumn(str):
    """A note that the last column of a file holds no entity, but another one may."""


_COMMENT = re.compile(r"#([ \t]|$)|#[^ \t]+ = ")
_LABELLED = re.compile(r"[BIESLUM]-(.+)")
_NUMBER = re.compile(r"[0-9]+")
_DIGITS = re.compile(r"[0-9]{1,18}")
_NO_WORD = re.compile(r"[0-9]+[-.][0-9]+")
"""The numbers of multiword ranges and of empty nodes, as in CoNLL-U."""
_CHUNKS = frozenset(
    ["NP", "VP", "PP", "ADJP", "ADVP", "SBAR", "PRT", "CONJP", "INTJ", "LST", "UCP", "NC", "PC", "VC"]
)
"""Labels of phrases: CoNLL-2003 has a column of them, with the same kind of tags as entities."""


def read_conll2003(
    path: Path,
    scheme: Scheme | None = None,
    columns: Mapping[str, int] | None = None,
    lenient: bool = False,
    numbered: bool = False,
    comment: str | None = None,
) -> list[Sentence]:
    """Sentences with entities; the tagging scheme is detected over the whole file unless declared.

    Lines with the marker `-DOCSTART-` are not words; they end the sentence before them. A comment comes
    before the first row of its sentence, begins with `# ` or `#NAME = `, and has another number of columns
    than the rows.

    Args:
        path: The file.
        scheme: The tagging scheme; `None`: the one that fits the whole file.
        columns: The columns, counted from 1, of the `word` (default: 1), of its `entity` tag (default: the
            last), of its part-of-speech `tag` (default: not read, since CoNLL-2003's tags were made by a
            tagger) and of the label of the `sentence` (default: not read). If `entity` is named, rows of
            columns separated by tabs may differ in their number.
        lenient: Interpret tags that break the scheme as `conlleval` does, with a note for each.
        numbered: The first column numbers the words of each sentence from 1.
        comment: The key of the comment that holds the label of each sentence (`# KEY = LABEL`).

    Raises:
        InputError: with the line, for a row that lacks one of these columns, for a tag that breaks its scheme
            (unless `lenient`), and for word numbers that do not count from 1.
    """
    named = {"word": 1, "entity": 0, **(columns or {})}
    of_sentence = SentenceLabel(comment, named.get(ROLE_OF_SENTENCE))
    layout = _Layout(path, named, "entity" in (columns or {}), of_sentence)
    blocks = list(read_blocks(path, Syntax(layout.is_marker, layout.is_comment, ragged=layout.ragged)))
    whole = blocks
    layout.check(blocks)
    refuse_shared_columns(path, blocks, layout.columns)
    if layout.columns["word"] > 1:
        blocks = _words_alone(blocks, numbered)
        if numbered:
            _refuse_gaps(path, blocks)
        refuse_restarts(path, blocks, 0)
    if not columns:
        _refuse_numbers(path, blocks)
    labels = [block.column(layout.entity) for block in blocks]
    used = scheme or detect(labels)
    sentences = []
    for block, tags, before in zip(blocks, labels, whole, strict=True):
        try:
            spans, repairs = repaired(tags, used) if lenient else (entities_of_tags(tags, used), 0)
        except TagError as error:
            row = block.rows[error.word]
            how = "" if is_tag(row.fields[layout.entity]) else _tags_elsewhere(blocks, layout, row)
            if not how and not scheme:
                how = f" (the file looks most like {used}; declare its scheme or its columns)"
            raise malformed(path, row.line, f"{error}{how}") from error
        lost = 0
        if len(block.rows) < len(before.rows):  # rows of multiword ranges and empty nodes
            lost = sum(tag != "O" and is_tag(tag) for tag in before.column(layout.entity))
            lost -= sum(tag != "O" for tag in tags)
        sentence = Sentence(
            words=tuple(block.column(layout.columns["word"] - 1)),
            layers={OF_SENTENCE: of_sentence.of(path, block)},
            tags=tuple(block.column(layout.columns["tag"] - 1)) if "tag" in layout.columns else None,
            entities=spans,
            id=sentence_id(path, block),
            document=block.document,
            notes=(REPAIRED,) * repairs + (NO_WORD,) * lost,
        )
        sentences.append(checked(path, block, sentence))
    of_sentence.require_found(path)
    found = {label for sentence in sentences for _, _, label in sentence.entities or ()}
    notes = _other_columns(blocks) if not columns and not found else []
    if not columns and found and found <= _CHUNKS:
        notes = [f"the last column of a file has phrases ({', '.join(sorted(found)[:3])}), read as entities"]
    if notes:
        sentences[0] = replace(sentences[0], notes=(*sentences[0].notes, *notes))
    return sentences


class _Layout(NamedTuple):
    """The columns of a file, by role; `entity` 0 is the last."""

    path: Path
    columns: Mapping[str, int]
    ragged: bool
    of_sentence: SentenceLabel

    @property
    def entity(self) -> int:
        return self.columns["entity"] - 1

    @property
    def needed(self) -> int:
        return max(2, *self.columns.values())

    def _labelled(self, fields: Sequence[str]) -> bool:
        return len(fields) >= self.needed and _LABELLED.fullmatch(fields[self.entity]) is not None

    def is_marker(self, line: Line) -> bool:
        if not MARKER.match(line.text):
            return False
        if self._labelled(re.split(r"[ \t]+", line.text.strip(BLANKS))):
            raise malformed(self.path, line.line, "the marker -DOCSTART- has an entity's tag; write O")
        return True

    def is_comment(self, line: Line, fields: list[str], tabs: bool, width: int) -> bool:
        if self.of_sentence.is_comment(line.text):
            return True
        if not _COMMENT.match(line.text):
            return False
        # Rows of other widths may begin with a '#' that is their word, where the word comes first.
        ragged = tabs and self.ragged and self.columns["word"] == 1
        if width and len(fields) != width and not (ragged and len(fields) >= self.needed):
            return True
        if not width and not (len(fields) >= self.needed and is_tag(fields[self.entity])):
            return True  # all lines of the file begin with '#': only a tag says that one is a row
        if tabs or not METADATA.match(line.text):
            return False
        if len(fields) >= self.needed and is_tag(fields[self.entity]):
            what = "a comment or a row? it could be either; separate the columns by tabs"
            raise malformed(self.path, line.line, what)
        return True

    def check(self, blocks: Sequence[SentenceRows]) -> None:
        require_columns(self.path, blocks, self.needed, "is it CoNLL-2003?")
        for block in blocks if not self.ragged else ():
            # A word that is missing in a sentence of one row would leave the next column in its place.
            row, first = block.rows[0], len(blocks[0].rows[0].fields)
            if len(row.fields) != first:
                number = counted(len(row.fields), "column")
                what = f"{number}, where the file's first row has {first}; write as many"
                raise malformed(self.path, row.line, what)


def _words_alone(blocks: Sequence[SentenceRows], numbered: bool) -> list[SentenceRows]:
    """The blocks without rows of multiword ranges and empty nodes, if the first column numbers the words."""
    found = []
    for block in blocks:
        rows = [row for row in block.rows if not _NO_WORD.fullmatch(row.fields[0])]
        if not rows or not (numbered or all(_NUMBER.fullmatch(row.fields[0]) for row in rows)):
            return [*blocks]
        found.append(block._replace(rows=rows))
    return found


def _refuse_gaps(path: Path, blocks: Sequence[SentenceRows]) -> None:
    """Raise `InputError` for the first word whose number is not the next one."""
    for block in blocks:
        for number, row in enumerate(block.rows, start=1):
            found = row.fields[0]
            if found != str(number):
                how = "put a blank line between sentences" if found == "1" else "is a row missing?"
                what = f"word number '{found}' where {number} is expected; {how}"
                raise malformed(path, row.line, f"{what} (other numbers: conll2003:word=2,entity=3)")


def _tags_elsewhere(blocks: Sequence[SentenceRows], layout: _Layout, row: ColumnRow) -> str:
    """What to do about a cell that is not a tag, if it belongs to a header or another column has the tags."""
    _, *rest = (tag for block in blocks for tag in block.column(layout.entity))
    if row is blocks[0].rows[0] and _are_tags(rest):
        return " (is the first line a header? take it out)"
    for column in range(min(len(row.fields) for block in blocks for row in block.rows)):
        if _are_tags([tag for block in blocks for tag in block.column(column)]):
            word = layout.columns["word"] if column + 1 != layout.columns["word"] else 2 - column
            return f" (column {column + 1} has tags: {_named(word, column + 1)})"
    return ""


def _are_tags(cells: Sequence[str]) -> bool:
    """Whether cells are tags of entities, and not all of them O."""
    return all(map(is_tag, cells)) and any(cell != "O" for cell in cells)


def _named(word: int, entity: int) -> str:
    """How to name columns, in a configuration and on the command line."""
    return (
        f"name the columns, such as columns: {{word: {word}, entity: {entity}}} in a configuration or "
        f"conll2003:word={word},entity={entity}:PATH in a command"
    )


def _refuse_numbers(path: Path, blocks: Sequence[SentenceRows]) -> None:
    """Raise `InputError` if the first column, which should hold the words, numbers them."""
    if are_numbers([block.column(0) for block in blocks]):
        what = (
            f"the first column, where words should be, numbers them: {_named(2, 3)} (or use format uner, "
            "which has these columns)"
        )
        raise malformed(path, blocks[0].rows[0].line, what)


def are_numbers(sentences: Iterable[Sequence[str]]) -> bool:
    """Whether most sentences of several words are only increasing numbers.

    Numbers may be written `1`, `3-1`, `#1`, `[1]` or `0:3`; multiword ranges and empty nodes may be among
    them.
    """
    longer = [words for words in sentences if len(words) > 1]
    return 2 * sum(map(_counts, longer)) > len(longer)


def _counts(words: Sequence[str]) -> bool:
    """Whether words are digits among the same marks, and form increasing numbers."""
    return not any(map(str.isalpha, "".join(words))) and any(
        len({_DIGITS.sub("0", word) for word in some}) == 1 and _grow(some)
        for some in (words, [word for word in words if not _NO_WORD.fullmatch(word)])
    )


def _grow(words: Sequence[str]) -> bool:
    numbers = [[*map(int, _DIGITS.findall(word))] for word in words]
    return all(first < second for first, second in pairwise(numbers)) and numbers != [[]]


def _other_columns(blocks: Sequence[SentenceRows]) -> list[str]:
    """A note on each column that looks like tags of entities, for a file whose last column has none."""
    notes: list[str] = []
    for column in range(1, min((len(block.rows[0].fields) for block in blocks), default=0) - 1):
        tags = {tag for block in blocks for tag in block.column(column)}
        labels = {tag: match[1] for tag in tags - {"O"} if (match := _LABELLED.fullmatch(tag))}
        if labels and len(labels) == len(tags - {"O"}) and not set(labels.values()) <= _CHUNKS:
            notes.append(
                OtherColumn(
                    f"the last column of a file holds no entity, but column {column + 1} has tags such as "
                    f"{min(labels)}: {_named(1, column + 1)}"
                )
            )
    return notes
