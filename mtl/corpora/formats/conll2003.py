"""CoNLL-2003 columns: a word in one column, its entity tag in another."""

from __future__ import annotations

import re
from pathlib import Path

from mtl.corpora.formats.columns import Block, checked, read_blocks
from mtl.corpora.formats.iob import Scheme, TagError, detect, entities
from mtl.corpora.formats.lines import malformed
from tasks.sentence import Sentence

# A '#' may be a word: a comment is metadata such as '# sent_id = 1' and nothing else.
_COMMENT = re.compile(r"#\s*[\w:]+( [\w:]+)*\s*=")
_SENT_ID = re.compile(r"#\s*sent_id\s*=\s*(\S.*?)\s*$")


def read_conll2003(
    path: Path,
    scheme: Scheme | None = None,
    word_column: int = 0,
    entity_column: int = -1,
    tag_column: int | None = None,
) -> list[Sentence]:
    """Sentences with entities; the tagging scheme is detected over the whole file unless declared.

    The part-of-speech column of CoNLL-2003 was made by a tagger, so it is only read (as tags) where
    `tag_column` names it. Columns count from 0, from the end if negative; -DOCSTART- lines are left out.
    """
    columns = (word_column, entity_column, tag_column or 0)
    needed = max(2, *(column + 1 if column >= 0 else -column for column in columns))
    blocks = []
    # Columns counted from the start may be followed by any number of others (notes on some words only).
    for block in read_blocks(path, _COMMENT, ragged=min(columns) >= 0):
        if block.rows[0].fields[0].startswith("-DOCSTART-"):
            continue
        for row in block.rows:
            if len(row.fields) < needed:
                raise malformed(
                    path,
                    row.line,
                    f"{len(row.fields)} column(s), where {needed} are expected; is it CoNLL-2003?",
                )
        blocks.append(block)
    labels = [block.column(entity_column) for block in blocks]
    used = scheme or detect(labels)
    sentences = []
    for number, (block, tags) in enumerate(zip(blocks, labels, strict=True), start=1):
        try:
            spans = entities(tags, used)
        except TagError as error:
            how = "" if scheme else f" (the file looks most like {used}; declare its scheme if it is another)"
            raise malformed(path, block.rows[error.word].line, f"{error}{how}") from error
        sentence = Sentence(
            words=tuple(block.column(word_column)),
            tags=None if tag_column is None else tuple(block.column(tag_column)),
            entities=spans,
            id=_id(block) or f"{path.stem}-{number:04d}",
        )
        sentences.append(checked(path, block, sentence))
    return sentences


def _id(block: Block) -> str:
    return next((match[1] for comment in block.comments if (match := _SENT_ID.match(comment))), "")
