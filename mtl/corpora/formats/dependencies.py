"""Files of dependencies: CoNLL-U, and the semantic dependencies of SemEval.

CoNLL-U (https://universaldependencies.org/format.html) has lemmas, tags, features, and basic and enhanced
dependencies. Other layers are read from what this program wrote (`own_layers`).

Files of SemEval 2014 (task 8) and 2015 (task 18) have graphs in columns, `.sdp`. A file of 2015 begins with
the line `#SDP 2015` and has a column more, FRAME. A sentence is a comment with its number and a row for each
word: number, form, lemma, tag, TOP and PRED (`+` or `-`), in 2015 FRAME, and a column for each word whose
PRED is `+`, in their order, with the labels of its arguments (`_`: none).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from mtl.corpora.formats.columns import (
    OF_SENTENCE,
    ColumnRow,
    Line,
    SentenceLabel,
    SentenceRows,
    Syntax,
    cell,
    checked,
    form,
    read_blocks,
    rows_as_text,
    sentence_id,
)
from mtl.corpora.formats.lines import NO_HEAD, malformed, name_of, read_lines
from mtl.corpora.formats.own_layers import (
    DEPS,
    EMPTY,
    NO_WAY,
    Deps,
    NodeArc,
    collapsed,
    comments_of,
    deps_of,
    in_column,
    is_spelled,
    misc_of,
    misc_values,
    node_arcs,
    with_own_layers,
    without_way,
)
from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import FEATS, LEMMAS, Arc, Arcs, Graph, MadeUpId, Sentence, Span, features_in_order
from mtl.tasks.spans import TagError, detect, entities_of_tags, is_tag

_NUMBER = re.compile(r"[0-9]{1,9}")
_NO_WORD = re.compile(r"([0-9]+)([-.])([0-9]+)")
"""The ids of multiword ranges (1-2) and of empty nodes (1.1)."""
_GLOBAL = re.compile(r"#[ \t]*global\.columns[ \t]*=(.*)")
_WHITE = re.compile(r"[\t-\r\x1c-\x1f\x85]+")
"""White space that consists of control characters."""
_TEXT = re.compile(r"#\s*text\s*=(.*)")
_TAGGED = re.compile(r"([^|=]+)=[BISEUL]-[^|]")
_STANDARD = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
_SYNTAX = Syntax(comment=lambda line, fields, tabs, width: True, tabs=True)
ATTACHED = "further root attached to the first root of its sentence"
_AFTER_BLANK = re.compile(r"[^|\s]\s+([^|=\s]+)=(O|[BISEULM]-[^|\s]+)(?![^|\s])")
"""An item of MISC with the tag of an entity, after a blank within another item."""
NO_BAR = "tag of an entity in MISC that follows a blank where '|' should be, which is left out"
NO_RELATION = "sentence whose arcs are left out, since the file has only one of the columns HEAD and DEPREL"
NO_TEXT = "text that the words of its sentence do not spell, which is left out"
RANGE = "multiword token whose words do not spell it: in the text, its words stand for it"
NO_WORD = "tag of an entity at a multiword range or an empty node, which is left out"
NO_ENTITIES = "NER in MISC that is not a tag of entities, so the file's entities are not read"


def read_conllu(
    path: Path,
    column: Literal["xpos", "upos"] = "xpos",
    roots: Literal["refuse", "attach"] = "refuse",
    entities: str | None = None,
    left_out: Collection[str] = (),
    comment: str | None = None,
) -> list[Sentence]:
    """Sentences with tags (from `column`), universal tags and arcs, relations with their subtypes.

    The document of a sentence is that of the latest `# newdoc`.

    LEMMA and FEATS become the layers `lemmas` and `feats` (features in UD's order), and DEPS becomes the
    layer `deps`, a graph. The text is that of `# text`, or as SpaceAfter says. Multiword ranges and empty
    nodes are not words here and are left out; in a graph, an arc replaces each path over empty nodes
    (`mtl.corpora.formats.own_layers`), with a note for each of these nodes. A column with only `_` in a
    sentence is not annotated there. Where HEAD is `_` for some words only, the tree is partial, with a note
    for each of them. In FEATS, `_` is also a value: no feature. If a
    file has features, they count as annotated in each of its sentences with lemmas or tags. CoNLL-U Plus
    (`.conllup`, `.cupt`) names its columns in the comment `# global.columns`; layers without a column are not
    annotated.

    Args:
        path: The file.
        column: The column that `tags` are read from.
        roots: Refuse several roots in a sentence, or attach all but the first to it, with a note for each.
        entities: The key in MISC, or the column of CoNLL-U Plus, with a tag of entities per word; `None`:
            the key NER, which this program writes, if all of its values are such tags. If some words of a
            sentence have a tag and others have none, all words of the file without a tag are O.
        left_out: Those of the layers `lemmas`, `feats` and `deps` that are neither read nor checked.
        comment: The key of the comment that holds the label of each sentence (`# KEY = LABEL`).

    Raises:
        InputError: with the line, for what breaks the format, arcs that do not form a tree, DEPS that are not
            `HEAD:LABEL|…`, and tags of entities that fit no scheme.
    """
    names: tuple[str, ...] = _STANDARD
    blocks: list[_Words] = []
    for block in read_blocks(path, _SYNTAX):
        named = _column_names(path, block)
        if blocks and named is not None and named.names != names:
            raise malformed(
                path,
                named.line,
                "other columns than the file's first sentence; write each layout into a file",
            )
        names = names if named is None else named.names
        blocks.append(_Words(path, block, names))
    layers = _entities(path, blocks, entities)
    if FEATS not in left_out and not any(block.annotated("FEATS") for block in blocks):
        left_out = {*left_out, FEATS}
    of_sentence = SentenceLabel(comment)
    labels = [{} if comment is None else {OF_SENTENCE: of_sentence.of(path, words.block)} for words in blocks]
    of_sentence.require_found(path)
    return [
        _sentence(path, block, column, roots, layer, left_out).with_layers(label)
        for block, layer, label in zip(blocks, layers, labels, strict=True)
    ]


class _Named(NamedTuple):
    """The columns that a comment names, and its line."""

    line: int
    names: tuple[str, ...]


class _Entities(NamedTuple):
    """The entities of a sentence, and notes on them."""

    spans: tuple[Span, ...] | None
    notes: tuple[str, ...] = ()


class _Words:
    """The rows of a sentence that are words, and their columns by name."""

    def __init__(self, path: Path, block: SentenceRows, names: Sequence[str]) -> None:
        self.path, self.names = path, names
        self.block = block._replace(rows=[])
        self.rows = self.block.rows
        self.empty_nodes: dict[str, ColumnRow] = {}
        self.ranges: list[ColumnRow] = []
        last = 0  # the last word of the latest range
        self.empty = (0, 0)  # the word before the latest empty node, and the node's number
        for row in block.rows:
            if len(row.fields) != len(names):
                what = f"{counted(len(row.fields), 'column')}; CoNLL-U has {len(names)}, separated by tabs"
                raise malformed(path, row.line, what if names is _STANDARD else f"{what} (# global.columns)")
            index = row.fields[names.index("ID")] if "ID" in names else str(len(self.rows) + 1)
            if no_word := _NO_WORD.fullmatch(index):
                last = self._no_word(row, no_word, last)
                continue
            if index != str(len(self.rows) + 1):
                raise malformed(path, row.line, f"word id '{index}' where {len(self.rows) + 1} is expected")
            self.rows.append(row)
        if not self.rows:
            raise malformed(path, block.rows[0].line, "a sentence without words; take it out")
        if last > len(self.rows):
            what = (
                f"a multiword range ends with word {last}, and the sentence has "
                f"{counted(len(self.rows), 'word')}"
            )
            raise malformed(path, block.rows[-1].line, what)

    def _no_word(self, row: ColumnRow, index: re.Match[str], last: int) -> int:
        """The last word of the latest range; raises `InputError` for a row in the wrong place."""
        first, end, here = int(index[1][:9]), int(index[3][:9]), len(self.rows)
        if index[2] == ".":
            if first != here:
                raise malformed(self.path, row.line, f"the empty node '{index[0]}' comes after word {here}")
            if (first, end) <= self.empty:
                what = f"the empty node '{index[0]}' comes after '{self.empty[0]}.{self.empty[1]}'"
                raise malformed(self.path, row.line, what)
            self.empty = (first, end)
            self.empty_nodes[index[0]] = row
            return last
        if first != here + 1 or end < first or first <= last:
            what = f"the multiword range '{index[0]}' where one from {max(here, last) + 1} on is expected"
            raise malformed(self.path, row.line, what)
        self.ranges.append(row)
        return end

    def column(self, name: str) -> list[str] | None:
        return self.block.column(self.names.index(name)) if name in self.names else None

    def annotated(self, name: str) -> tuple[str, ...] | None:
        values = self.column(name)
        return None if values is None or all(value == "_" for value in values) else tuple(values)


def _column_names(path: Path, block: SentenceRows) -> _Named | None:
    for line, text in block.comments:
        if match := _GLOBAL.fullmatch(text):
            names = tuple(match[1].split())
            if "FORM" not in names or len(set(names)) < len(names):
                raise malformed(path, line, "the columns must have FORM among them, and each name once")
            return _Named(line, names)
    return None


def _sentence(
    path: Path,
    words: _Words,
    column: str,
    roots: str,
    entities: _Entities,
    left_out: Collection[str],
) -> Sentence:
    arcs, notes = _arcs(words, roots)
    deps, of_deps = (None, ()) if DEPS in left_out else _deps(words)
    upos = words.annotated("UPOS")
    sentence = Sentence(
        tuple(words.column("FORM") or ()),
        {
            "upos": upos,
            "tags": words.annotated("XPOS") if column == "xpos" else upos,
            "entities": entities.spans,
            "arcs": arcs,
            LEMMAS: None if LEMMAS in left_out else words.annotated("LEMMA"),
            FEATS: None if FEATS in left_out else _features(words),
            DEPS: deps,
        },
        id=sentence_id(path, words.block),
        document=words.block.document,
        notes=(*notes, *of_deps, *entities.notes),
    )
    sentence, problem = with_own_layers(sentence, words.block.comments)
    if problem is not None:
        raise malformed(path, *problem)
    return checked(path, words.block, sentence if sentence.text else _with_text(words, sentence))


def _with_text(words: _Words, sentence: Sentence) -> Sentence:
    """The sentence with its text as SpaceAfter says, if it has no `# text` that its words spell.

    In the text, the words of a multiword token that they do not spell stand for it. A `# text` that differs
    in other ways is left out, with a note.
    """
    given = next((match[1] for _, text in words.block.comments if (match := _TEXT.match(text))), None)
    if given is not None and is_spelled(given, sentence.words):
        return sentence
    misc = words.names.index("MISC") if "MISC" in words.names else None
    after = ["" if misc is not None and _is_joined(row.fields[misc]) else " " for row in words.rows]
    tokens = list(sentence.words)
    unspelled = 0
    for row in words.ranges:
        first, last = map(int, row.fields[words.names.index("ID")].split("-"))
        form = row.fields[words.names.index("FORM")]
        spelled = is_spelled(form, sentence.words[first - 1 : last])
        unspelled += not spelled
        tokens[first - 1 : last] = [form, *[""] * (last - first)]
        after[first - 1 : last - 1] = ["" if spelled else " "] * (last - first)
        after[last - 1] = "" if misc is not None and _is_joined(row.fields[misc]) else " "
    if given is not None and not is_spelled(given, tokens):
        return replace(sentence, notes=(*sentence.notes, NO_TEXT))
    text = "".join(chain(*zip(sentence.words, after, strict=True))).strip()
    notes = (*sentence.notes, *(RANGE,) * unspelled)
    return replace(sentence, text="" if text == " ".join(sentence.words) else text, notes=notes)


def _is_joined(misc: str) -> bool:
    return "SpaceAfter=No" in misc and "SpaceAfter=No" in map(str.strip, misc.split("|"))


def _features(words: _Words) -> tuple[str, ...] | None:
    """The bundle of features of each word; `None` for a sentence without features, lemmas and tags."""
    values = words.column("FEATS")
    if values is None or not any(map(words.annotated, ("FEATS", "LEMMA", "UPOS", "XPOS"))):
        return None
    return tuple(map(features_in_order, values))


def _arcs(words: _Words, roots: str) -> tuple[Arcs | None, tuple[str, ...]]:
    """The arcs, and notes on what was changed or left out."""
    heads: list[int | None] = []
    values, relations = words.annotated("HEAD"), words.column("DEPREL")
    if values is None or relations is None:
        return None, (NO_RELATION,) if values is not None or words.annotated("DEPREL") else ()
    notes = (NO_HEAD,) * values.count("_")
    for row, value in zip(words.rows, values, strict=True):
        if value != "_" and (not _NUMBER.fullmatch(value) or int(value) > len(values)):
            raise malformed(words.path, row.line, f"head {value!r}; it must be 0 (the root) to {len(values)}")
        heads.append(None if value == "_" else int(value))
    first, *others = [number for number, head in enumerate(heads) if head == 0] or [0]
    if roots == "attach":
        for number in others:
            heads[number] = first + 1
        notes += (ATTACHED,) * len(others)
    return Arcs(tuple(heads), tuple(relations)), notes


def _deps(words: _Words) -> tuple[Graph | None, tuple[str, ...]]:
    """The graph of the column DEPS, and notes on its empty nodes."""
    if words.annotated("DEPS") is None:
        return None, ()
    column = words.names.index("DEPS")
    nodes = {str(number): row for number, row in enumerate(words.rows, start=1)} | words.empty_nodes
    arcs: list[NodeArc] = []
    for node, row in nodes.items():
        try:
            arcs += node_arcs(node, row.fields[column], nodes)
        except ValueError as error:
            raise malformed(words.path, row.line, str(error)) from error
    try:
        notes = (EMPTY,) * len(words.empty_nodes) + (NO_WAY,) * without_way(arcs)
        return collapsed(arcs), notes
    except ValueError as error:
        raise malformed(words.path, words.rows[0].line, str(error)) from error


def _entities(path: Path, sentences: Sequence[_Words], key: str | None) -> list[_Entities]:
    """The entities of each sentence of a file."""
    tags = [_entity_tags(words, words.rows, key or "NER") for words in sentences]
    found = {tag for of_sentence in tags for tag in of_sentence if tag is not None}
    if key is None and not all(is_tag(tag) for tag in found):
        return [
            _Entities(None, (NO_ENTITIES,) * sum(tag is not None and not is_tag(tag) for tag in of_sentence))
            for of_sentence in tags
        ]
    if key is not None and not found:
        raise InputError(f"{path}: no word has '{key}', neither as a column nor in MISC; check its name")
    some_left_out = any(None in of_sentence and any(of_sentence) for of_sentence in tags)
    filled = [
        [tag or "O" for tag in of_sentence] if some_left_out or any(of_sentence) else None
        for of_sentence in tags
    ]
    scheme = detect([of_sentence for of_sentence in filled if of_sentence is not None])
    layers = []
    unread = _unread(sentences) if key is None and not found else [()] * len(sentences)
    for words, of_sentence, of_others in zip(sentences, filled, unread, strict=True):
        others = _entity_tags(words, [*words.ranges, *words.empty_nodes.values()], key or "NER")
        notes = (*of_others, *((NO_WORD,) * sum(tag not in (None, "O") for tag in others)))
        notes += (NO_BAR,) * _after_blanks(words, key)
        try:
            spans = None if of_sentence is None else entities_of_tags(of_sentence, scheme)
            layers.append(_Entities(spans, notes))
        except TagError as error:
            raise malformed(path, words.rows[error.word].line, str(error)) from error
    return layers


def _unread(sentences: Sequence[_Words]) -> list[tuple[str, ...]]:
    """For each sentence, a note for each tag of an entity in another column or under another key of MISC."""
    keys = {name for words in sentences for name in words.names} - {*_STANDARD}
    for words in sentences:
        for misc in words.column("MISC") or ():
            keys.update(match[1].strip(" ") for match in _TAGGED.finditer(misc))
    notes: list[tuple[str, ...]] = [()] * len(sentences)
    for key in sorted(keys):
        tags = [_entity_tags(words, words.rows, key) for words in sentences]
        if all(tag is None or is_tag(tag) for of_sentence in tags for tag in of_sentence):
            note = f"tag of an entity under '{key}', which is not read: entities={key} reads it"
            for place, of_sentence in enumerate(tags):
                notes[place] += (note,) * sum(tag not in (None, "O") for tag in of_sentence)
    return notes


def _after_blanks(words: _Words, key: str | None) -> int:
    """The number of words with a tag in MISC after a blank, under this key; `None`: under any."""
    found = (match for misc in words.column("MISC") or () for match in _AFTER_BLANK.finditer(misc))
    return sum(key in (None, match[1]) for match in found)


def _entity_tags(words: _Words, rows: Sequence[ColumnRow], key: str) -> list[str | None]:
    """For each row, the tag in a column of this name or under this key of MISC; `None` without one."""
    if key in words.names:
        cells = [row.fields[words.names.index(key)] for row in rows]
        return [None if value == "_" else value for value in cells]
    if "MISC" not in words.names:
        return [None] * len(rows)
    tags: list[str | None] = []
    for row in rows:
        values = misc_values(row.fields[words.names.index("MISC")], key)
        if len(values) > 1 and all(map(is_tag, values)):
            raise malformed(words.path, row.line, f"MISC has '{key}' {len(values)} times; write it once")
        tags.append(min(values, key=is_tag, default=None))
    return tags


def to_conllu(sentence: Sentence, empty_nodes: bool = True) -> str:
    """One sentence in CoNLL-U, with the empty line that ends it.

    `# text` is the sentence's text on one line or, if that is not known, its words separated by blanks. The
    column DEPS holds the layer `deps` if that is a graph that the column can hold (`deps_of`). Layers without
    a column are in comments and MISC (`own_layers`). Tabs, line ends and control characters in a column
    become `_`; in labels, so does other white space. Raises `InputError` for overlapping entities, which BIO
    cannot represent.
    """
    words = [form(word) for word in sentence.words]
    comments = [f"# sent_id = {cell(sentence.id)}"] if sentence.id else []
    comments += ["# id_made_up = true"] if isinstance(sentence.id, MadeUpId) else []
    comments += [f"# document = {cell(sentence.document)}"] if sentence.document else []
    text = sentence.text if is_spelled(sentence.text, sentence.words) else " ".join(words)
    comments.append(f"# text = {form(_WHITE.sub(' ', text).strip(' '))}")
    comments += comments_of(sentence)
    empty = ["_"] * len(words)
    deps = deps_of(sentence, empty_nodes) or Deps(empty, {})
    columns = (
        [str(number) for number in range(1, len(words) + 1)],
        words,
        [form(lemma) for lemma in in_column(sentence, LEMMAS) or empty],
        [cell(tag) for tag in sentence.upos or empty],
        [cell(tag) for tag in sentence.tags or empty],
        [cell(features_in_order(bundle)) for bundle in in_column(sentence, FEATS) or empty],
        empty
        if sentence.arcs is None
        else ["_" if head is None else str(head) for head in sentence.arcs.heads],
        empty if sentence.arcs is None else [cell(relation) for relation in sentence.arcs.relations],
        deps.words,
        misc_of(sentence),
    )
    rows = list(zip(*columns, strict=True))
    for word in sorted(deps.empty, reverse=True):
        rows[word:word] = [(node, *["_"] * 7, arcs, "_") for node, arcs in deps.empty[word]]
    return rows_as_text([*comments, *map("\t".join, rows)])


SDP_HEADER = "#SDP 2015"
"""The first line of a file of 2015."""
SENSES = "senses"
"""The layer with the column FRAME: the sense of each word, `_` for none."""
TOP = "root"
"""The label of the arc from the root to a top word."""
_NO_ID = re.compile(r"#NO-ID", re.IGNORECASE)
_SDP_SYNTAX = Syntax(
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
    blocks = list(read_blocks(path, _SDP_SYNTAX))
    first = next((line for line in read_lines(path) if line.strip()), "")
    framed = first.startswith(SDP_HEADER) or (bool(blocks) and _has_frames(blocks))
    return [_sdp_sentence(path, block, framed) for block in blocks]


def to_sdp(sentence: Sentence) -> str:
    """The sentence in the columns of 2015, of a file whose first line is `SDP_HEADER`.

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


def _sdp_sentence(path: Path, block: SentenceRows, framed: bool) -> Sentence:
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
        id=_sdp_id(path, block),
    )
    return checked(path, block, sentence)


_MAYBE_2015 = f" (a file of 2015 begins with the line {SDP_HEADER})"


def _sdp_id(path: Path, block: SentenceRows) -> str:
    named = [Line(line, text) for line, text in block.comments if not _NO_ID.match(text)]
    name = named[0].text.lstrip("#").strip() if named else ""
    return name or MadeUpId(f"{name_of(path)}-{block.number:04d}")
