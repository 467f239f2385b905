"""Semantic dependencies of SemEval 2014 (task 8) and 2015 (task 18): graphs in columns, `.sdp`.

A file of 2015 begins with the line `#SDP 2015` and has a column more, FRAME. A sentence is a comment with its
number and a row for each word: number, form, lemma, tag, TOP and PRED (`+` or `-`), in 2015 FRAME, and a
column for each word whose PRED is `+`, in their order, with the labels of its arguments (`_`: none).
"""

from __future__ import annotations

import re
from pathlib import Path

from mtl.corpora.formats.columns import (
    Line,
    SentenceRows,
    Syntax,
    checked,
    form,
    read_blocks,
    rows_as_text,
)
from mtl.corpora.formats.lines import malformed, name_of, read_lines
from mtl.corpora.formats.own_layers import DEPS
from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import LEMMAS, Arc, Graph, MadeUpId, Sentence

HEADER = "#SDP 2015"
"""The first line of a file of 2015."""
SENSES = "senses"
"""The layer with the column FRAME: the sense of each word, `_` for none."""
TOP = "root"
"""The label of the arc from the root to a top word."""
_NO_ID = re.compile(r"#NO-ID", re.IGNORECASE)
_SYNTAX = Syntax(
    marker=lambda line: line.text.startswith("#SDP "),
    comment=lambda line, fields, tabs, width: True,
    tabs=True,
)


def read_sdp(path: Path) -> list[Sentence]:
    """Sentences with tags, lemmas, a graph (`deps`) and, in files of 2015, the senses of words.

    Top words have an arc from the root, with the label `root`. The first line tells whether a file has the
    column FRAME; without that line, the number of columns does. Raises `InputError`, with the line, for a row
    that does not have a column for each predicate, and for marks other than `+` and `-`.
    """
    blocks = list(read_blocks(path, _SYNTAX))
    first = next((line for line in read_lines(path) if line.strip()), "")
    framed = first.startswith(HEADER) or (bool(blocks) and _has_frames(blocks))
    return [_sentence(path, block, framed) for block in blocks]


def to_sdp(sentence: Sentence) -> str:
    """The sentence in the columns of 2015, of a file whose first line is `HEADER`.

    What it does not have is `_`, and every arc from the root makes a top word. Raises `InputError` for a
    sentence without a graph, or with one that `in_sdp` refuses.
    """
    graph = sentence.layer(DEPS)
    if graph is None or not in_sdp(graph):
        what = "no graph" if graph is None else "arcs that its columns cannot hold"
        raise InputError(f"sdp: sentence '{sentence.id}' has {what}: leave it out")
    labels = {(arc.dependent, arc.head): form(arc.label) for arc in graph.arcs}
    predicates = sorted({head for _, head in labels if head})
    blank = ("_",) * len(sentence)
    layers = [sentence.words, *(sentence.layer(layer) or blank for layer in (LEMMAS, "tags", SENSES))]
    rows = []
    for number, (word, lemma, tag, sense) in enumerate(zip(*layers, strict=True), start=1):
        marks = ("+" if marked else "-" for marked in ((number, 0) in labels, number in predicates))
        arguments = (labels.get((number, head), "_") for head in predicates)
        rows.append("\t".join((str(number), *map(form, (word, lemma, tag)), *marks, form(sense), *arguments)))
    return f"#{form(sentence.id)}\n{rows_as_text(rows)}"


def in_sdp(graph: Graph) -> bool:
    """Whether the columns can hold a graph: one label for two words, none from a word to itself, no `_`."""
    pairs = {arc[:2] for arc in graph.arcs}
    return len(pairs) == len(graph.arcs) and all(
        arc.dependent != arc.head and arc.label != "_" for arc in graph.arcs
    )


def _has_frames(blocks: list[SentenceRows]) -> bool:
    """Whether every sentence has a column more than those of 2014."""
    return all(
        len(block.rows[0].fields) == 7 + sum(row.fields[5:6] == ["+"] for row in block.rows)
        for block in blocks
    )


def _sentence(path: Path, block: SentenceRows, framed: bool) -> Sentence:
    fixed = 7 if framed else 6
    width = len(block.rows[0].fields)
    if width < fixed:
        year = 2015 if framed else 2014
        what = f"{counted(width, 'column')}; SDP {year} has {fixed} and one for each predicate, with tabs"
        raise malformed(path, block.rows[0].line, what)
    predicates = []
    for number, row in enumerate(block.rows, start=1):
        if row.fields[0] != str(number):
            what = f"word number '{row.fields[0]}' where {number} is expected"
            raise malformed(path, row.line, f"{what}; put a blank line between sentences")
        for name, mark in (("TOP", row.fields[4]), ("PRED", row.fields[5])):
            if mark not in ("+", "-"):
                raise malformed(path, row.line, f"{name} is '{mark}'; write + or -")
        predicates += [number] if row.fields[5] == "+" else []
    if len(predicates) != width - fixed:
        raise malformed(
            path,
            block.rows[0].line,
            f"{counted(width - fixed, 'column')} of arguments and {counted(len(predicates), 'predicate')} "
            f"(+ in column 6); give each predicate its column{'' if framed else _MAYBE_2015}",
        )
    arcs = []
    for number, row in enumerate(block.rows, start=1):
        arcs += [Arc(number, 0, TOP)] if row.fields[4] == "+" else []
        labels = zip(predicates, row.fields[fixed:], strict=True)
        arcs += [Arc(number, head, label) for head, label in labels if label != "_"]
    lemmas, tags = (tuple(block.column(number)) for number in (2, 3))
    sentence = Sentence(
        tuple(block.column(1)),
        {
            "tags": None if set(tags) == {"_"} else tags,
            LEMMAS: None if set(lemmas) == {"_"} else lemmas,
            DEPS: Graph(tuple(arcs)),
            SENSES: tuple(block.column(6)) if framed else None,
        },
        id=_id(path, block),
    )
    return checked(path, block, sentence)


_MAYBE_2015 = f" (a file of 2015 begins with the line {HEADER})"


def _id(path: Path, block: SentenceRows) -> str:
    named = [Line(line, text) for line, text in block.comments if not _NO_ID.match(text)]
    name = named[0].text.lstrip("#").strip() if named else ""
    return name or MadeUpId(f"{name_of(path)}-{block.number:04d}")
