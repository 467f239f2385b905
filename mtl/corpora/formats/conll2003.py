"""CoNLL-2002 and CoNLL-2003 columns, and their like: a word in one column, its entity tag in another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mtl.corpora.formats.columns import (
    MARKER,
    Block,
    Line,
    Syntax,
    checked,
    read_blocks,
    refuse_restarts,
    sentence_id,
)
from mtl.corpora.formats.iob import Scheme, TagError, detect, entities, is_tag, repaired
from mtl.corpora.formats.lines import BLANKS, malformed
from mtl.tasks.sentence import Sentence

ROLES = ("word", "entity", "tag")
"""What a column may hold."""
REPAIRED = "tag repaired as conlleval takes it (an entity without its B-, or without its end)"


class OtherColumn(str):
    """A note that the last column of a file holds no entity, and another one may."""

    __slots__ = ()


_COMMENT = re.compile(r"#([ \t]|$)|#[^ \t]+ = ")
_METADATA = re.compile(r"#[ \t]+(id[ \t]|[^ \t=]+([ \t]+[^ \t=]+)*[ \t]+=([ \t]|$))")
_COUNTED = re.compile(r"([0-9]+[-._:])?([0-9]{1,9})([.):]?)")
_LABELLED = re.compile(r"[BIESLUM]-(.+)")
_CHUNKS = frozenset(
    ["NP", "VP", "PP", "ADJP", "ADVP", "SBAR", "PRT", "CONJP", "INTJ", "LST", "UCP", "NC", "PC", "VC"]
)
"""Labels of phrases, which CoNLL-2003 has a column of, tagged as its entities are."""


def read_conll2003(
    path: Path, scheme: Scheme | None = None, columns: Mapping[str, int] | None = None, lenient: bool = False
) -> list[Sentence]:
    """Sentences with entities; the tagging scheme is detected over the whole file unless declared.

    Lines of the marker `-DOCSTART-` are no words and end the sentence before them. A comment stands before
    the first row of its sentence, begins with `# `, and has not the rows' number of columns.

    Args:
        path: The file.
        scheme: The tagging scheme; `None`: the one that fits the whole file.
        columns: The columns, counted from 1, of the `word` (1 if not named), of its `entity` tag (the last)
            and of its part-of-speech `tag` (not read: CoNLL-2003's was made by a tagger). With a column for
            `entity`, rows that tabs separate may have any number of further columns.
        lenient: Take tags that break the scheme as `conlleval` does, with a note for each.

    Raises:
        InputError: with the line, for a row without these columns and for a tag that breaks its scheme.
    """
    layout = _Layout(path, {"word": 1, "entity": 0, **(columns or {})}, "entity" in (columns or {}))
    blocks = list(read_blocks(path, Syntax(layout.is_marker, layout.is_comment, ragged=layout.ragged)))
    layout.check(blocks)
    if layout.columns["word"] > 1:
        refuse_restarts(path, blocks, 0)
    if not columns:
        _refuse_numbers(path, blocks)
    labels = [block.column(layout.entity) for block in blocks]
    used = scheme or detect(labels)
    sentences = []
    for number, (block, tags) in enumerate(zip(blocks, labels, strict=True), start=1):
        try:
            spans, repairs = repaired(tags, used) if lenient else (entities(tags, used), 0)
        except TagError as error:
            how = "" if scheme else f" (the file looks most like {used}; declare its scheme or its columns)"
            raise malformed(path, block.rows[error.word].line, f"{error}{how}") from error
        sentence = Sentence(
            words=tuple(block.column(layout.columns["word"] - 1)),
            tags=tuple(block.column(layout.columns["tag"] - 1)) if "tag" in layout.columns else None,
            entities=spans,
            id=sentence_id(path, block) or f"{path.stem}-{number:04d}",
            notes=(REPAIRED,) * repairs,
        )
        sentences.append(checked(path, block, sentence))
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
        if not _COMMENT.match(line.text):
            return False
        # Rows of other widths may begin with a '#' that is their word, where the word comes first.
        ragged = tabs and self.ragged and self.columns["word"] == 1
        if width and len(fields) != width and not (ragged and len(fields) >= self.needed):
            return True
        if not width and not (len(fields) >= self.needed and is_tag(fields[self.entity])):
            return True  # all lines of the file begin with '#': only a tag says that one is a row
        if tabs or not _METADATA.match(line.text):
            return False
        if len(fields) >= self.needed and (is_tag(fields[self.entity])):
            what = "a comment or a row? it could be either; separate the columns by tabs"
            raise malformed(self.path, line.line, what)
        return True

    def check(self, blocks: Sequence[Block]) -> None:
        for row in (row for block in blocks for row in block.rows):
            if len(row.fields) < self.needed:
                what = f"{len(row.fields)} column(s), where {self.needed} are expected; is it CoNLL-2003?"
                raise malformed(self.path, row.line, what)
        for block in blocks if not self.ragged else ():
            # A word that is missing in a sentence of one row would leave the next column in its place.
            row, first = block.rows[0], len(blocks[0].rows[0].fields)
            if len(row.fields) != first:
                what = f"{len(row.fields)} columns, where the file's first row has {first}; write as many"
                raise malformed(self.path, row.line, what)


def _named(word: int, entity: int) -> str:
    """How columns are named, in a configuration and on the command line."""
    return (
        f"name the columns, such as columns: {{word: {word}, entity: {entity}}} in a configuration or "
        f"conll2003:word={word},entity={entity}:PATH in a command"
    )


def _refuse_numbers(path: Path, blocks: Sequence[Block]) -> None:
    """Raise `InputError` where the first column, which should hold words, numbers them."""
    if any(len(block.rows) > 1 for block in blocks) and all(counts(block.column(0)) for block in blocks):
        what = (
            f"the first column, where words should be, numbers them: {_named(2, 3)} (or format uner, which "
            "has them so)"
        )
        raise malformed(path, blocks[0].rows[0].line, what)


def counts(words: Sequence[str]) -> bool:
    """Whether words are whole numbers, each one more than the one before; also as `1.` or `3-1`."""
    parts = [_COUNTED.fullmatch(word) for word in words]
    if not all(parts) or len({(part[1], part[3]) for part in parts if part}) > 1:
        return False
    numbers = [int(part[2]) for part in parts if part]
    return [number - numbers[0] for number in numbers] == list(range(len(numbers)))


def _other_columns(blocks: Sequence[Block]) -> list[str]:
    """A note on each column that looks like tags of entities, of a file whose last one holds none."""
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
