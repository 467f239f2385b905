"""Phrase structure: trees in Penn brackets, and trees with frames in columns of CoNLL-2005 and CoNLL-2012."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from mtl.corpora.formats.columns import (
    SentenceRows,
    Syntax,
    cell,
    checked,
    read_blocks,
    refuse_restarts,
    rows_as_text,
    sentence_id,
)
from mtl.corpora.formats.head_rules import NO_RULE, arcs_from
from mtl.corpora.formats.lines import fault, malformed, name_of, read_lines
from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Arcs, Frame, MadeUpId, Sentence, Span
from mtl.tasks.spans import constituents, without_verb
from mtl.tasks.tree import ROOTS, Tree

_TOKEN = re.compile(r"[()\n]|[^ \t\n()]+")
_COLUMN = re.compile(r" at column (\d+)")


class _Text(NamedTuple):
    line: int
    text: str


def read_brackets(path: Path, clean: bool = True, arcs: Literal["collins"] | None = None) -> list[Sentence]:
    """Sentences with trees and tags, all trees under one root TOP (`rooted`).

    `clean` removes traces (-NONE-) and function tags (NP-SBJ, NP=2). `arcs` also makes dependencies, by head
    rules (`head_rules`) that make use of function tags. A sentence has a note for each word
    whose tag is also a label of constituents in the file, which suggests trees written without tags.
    """
    sentences: list[Sentence] = []
    for number, text in enumerate(_texts(path), start=1):
        try:
            tree: Tree | None = parse_tree(text.text)
        except ValueError as error:
            raise _at_line(path, text, str(error)) from error
        if clean and tree is not None:
            tree = without_traces(tree)
        if tree is None:
            raise malformed(path, text.line, "a tree of nothing but traces; take it out")
        made = arcs and _arcs_by_rules(tree)
        if clean:
            tree = without_functions(tree)
        leaves = list(tree.leaves())
        words = tuple([plain_word(leaf.children) for leaf in leaves if isinstance(leaf.children, str)])
        sentence = Sentence(
            words=words,
            tags=tuple([leaf.label for leaf in leaves]),
            tree=rooted(with_words(tree, words)),
            arcs=made.arcs if made else None,
            notes=made.notes if made else (),
            id=MadeUpId(f"{name_of(path)}-{number:04d}"),
            place=f"{path}:{text.line}",
        )
        problem = fault(sentence)
        if problem is not None:
            raise malformed(path, text.line, problem.what)
        sentences.append(sentence)
    return _noted(sentences)


class _ByRules(NamedTuple):
    """Dependencies that head rules made of a tree, and a note for each label without a rule."""

    arcs: Arcs
    notes: tuple[str, ...]


def _arcs_by_rules(tree: Tree) -> _ByRules:
    arcs, without_rule = arcs_from(tree)
    return _ByRules(arcs, (NO_RULE,) * without_rule)


def _noted(sentences: list[Sentence]) -> list[Sentence]:
    """The sentences, with notes on words whose tag is also a label of constituents."""
    tags = {tag for sentence in sentences for tag in sentence.tags or ()}
    both = tags & {
        label for sentence in sentences if sentence.tree for _, _, label in constituents(sentence.tree)
    }
    if not both:
        return sentences
    note = f"word whose tag is a label of constituents as well ({', '.join(sorted(both)[:5])})"
    return [
        replace(
            sentence,
            notes=(*sentence.notes, *(note,) * sum(tag in both for tag in sentence.tags or ())),
        )
        for sentence in sentences
    ]


def to_brackets(tree: Tree) -> str:
    """A tree on one line; brackets in words become `-LRB-` and `-RRB-`, and blanks in words `_`.

    Brackets and blanks in labels are quoted: STTS's tag `$(` becomes `$%28`.
    """

    def writable(node: Tree, children: list[Tree]) -> Tree:
        label = label_in_brackets(node.label)
        word = cell(node.children).translate(IN_BRACKETS) if isinstance(node.children, str) else None
        return Tree(label, tuple(children) if word is None else word)

    return str(tree.fold(writable))


def _texts(path: Path) -> list[_Text]:
    """The file cut into its trees, each with the line on which it starts."""
    content = "\n".join(read_lines(path))
    texts: list[_Text] = []
    line, depth, start, first = 1, 0, 0, 1
    for token in _TOKEN.finditer(content):
        sign = token.group()
        if sign == "\n":
            line += 1
        elif sign == "(":
            if depth == 0:
                start, first = token.start(), line
            depth += 1
        elif depth == 0:
            raise malformed(
                path, line, f"'{sign}' outside of any tree; check the brackets of the previous tree"
            )
        elif sign == ")":
            depth -= 1
            if depth == 0:
                texts.append(_Text(first, content[start : token.end()]))
    if depth:
        raise malformed(path, first, f"{counted(depth, 'bracket')} of the tree that starts here never closed")
    return texts


def _at_line(path: Path, text: _Text, what: str) -> Exception:
    """The parser's error, with its column in the tree turned into a line of the file."""
    column = _COLUMN.search(what)
    line = text.line + (text.text.count("\n", 0, int(column[1])) if column else 0)
    return malformed(path, line, _COLUMN.sub("", what))


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
        words_of, name = tuple(map(plain_word, text)), sentence_id(path, block)
        sentence = Sentence(words_of, frames=frames, id=name, document=block.document)
        sentences.append(checked(path, block, sentence))
    return sentences


def _predicate_column(path: Path, block: SentenceRows) -> int:
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


def _frames(block: SentenceRows, column: int) -> tuple[Frame, ...]:
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


def _words(path: Path, words: Path | None, blocks: list[SentenceRows]) -> list[list[str]]:
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
    return rows_as_text(" ".join(row) for row in columns)


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


_MARKER = re.compile(r"#(begin|end) document([ \t]|$)")
_DOCUMENT, _PART, _NUMBER, _WORD, _TAG, _BIT, _LEMMA, _ROLESET, _NAME = 0, 1, 2, 3, 4, 5, 6, 7, 10
_FIXED_PROPBANK, _FIXED_ONTONOTES = 8, 11


def read_conll2012(path: Path, arcs: Literal["collins"] | None = None) -> list[Sentence]:
    """Sentences with tags, trees and frames, and with entities in OntoNotes' layout.

    `arcs` also makes dependencies of the trees, by head rules (`head_rules`).

    OntoNotes' columns are document, part, word number, word, tag, bracket bit, lemma, frameset, word sense,
    speaker, name, one column per predicate, and coreference. In PropBank's release, the columns of predicates
    follow the roleset. A masked word stays `[WORD]`. No names are annotated in OntoNotes' New Testament,
    which its columns do not show: leave it out when training NER. A file whose tags are all `-` has none.
    """
    counts: dict[tuple[str, str], int] = {}
    sentences = []
    blocks = list(read_blocks(path, Syntax(marker=lambda line: _MARKER.match(line.text) is not None)))
    if all(len(block.rows[0].fields) >= _FIXED_PROPBANK for block in blocks):
        refuse_restarts(path, blocks, _NUMBER)
    tagged = any(row.fields[_TAG : _TAG + 1] != ["-"] for block in blocks for row in block.rows)
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
            sentence = _sentence(block, propbank, name)
            sentence = sentence if tagged else sentence.with_layers({"tags": None})
            if arcs and sentence.tree is not None:
                made = _arcs_by_rules(sentence.tree)
                sentence = replace(sentence.with_layers({"arcs": made.arcs}), notes=made.notes)
            sentences.append(checked(path, block, sentence))
        except CellError as error:
            raise malformed(path, block.rows[error.row].line, str(error)) from error
    return sentences


def _sentence(block: SentenceRows, propbank: bool, name: str) -> Sentence:
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
        document=block.rows[0].fields[_DOCUMENT],
    )


def _frame(block: SentenceRows, column: int, predicate: int | None) -> Frame:
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


_CELL = re.compile(r"((?:\([^()* \t]+)*)(?:\*|(?<=[^*()])(?=\)))(\)*)")
_STARRED = re.compile(r"(?:\([^()* \t]+)*\*\)*")


class CellError(ValueError):
    """A fault in one cell of a column; `row` counts from 0."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


def is_starred(entry: str) -> bool:
    """Whether a cell is in start-end notation with its star."""
    return _STARRED.fullmatch(entry) is not None


def starred_spans(cells: Sequence[str]) -> tuple[Span, ...]:
    """The labelled spans of one column, in the order in which they open; `(GPE)` needs no star."""
    spans: list[Span] = []
    stack: list[int] = []
    for row, entry in enumerate(cells):
        if entry == "*":  # the quick way: nearly all cells are
            continue
        opened, closed = _split(row, entry)
        for label in opened:
            stack.append(len(spans))
            spans.append(Span(row, row, label))
        for _ in range(closed):
            if not stack:
                raise CellError(row, f"'{entry}' closes a span that was never opened")
            index = stack.pop()
            spans[index] = spans[index]._replace(end=row + 1)
    if stack:
        last = spans[stack[-1]]
        raise CellError(last.start, f"the span '({last.label}*' is never closed; add its ')'")
    return tuple(spans)


def require_verb(spans: Sequence[Span], predicate: int, column: int) -> None:
    """Raise `CellError` if a predicate's column (counted from 0) has its `V` elsewhere, or several `V`.

    Predicates and columns are in the same order, so an extra or missing column would shift all that follow.
    """
    several = [span.start for span in spans if span.label == "V"][1:]
    if several:
        raise CellError(
            several[0],
            f"a second '(V*)' in column {column + 1}; write the further parts of a verb as (C-V*)",
        )
    verbs = [span for span in spans if span.label in ("V", "C-V")]
    if verbs and not any(start <= predicate < end for start, end, _ in verbs):
        raise CellError(
            predicate,
            f"this predicate's column {column + 1} has its '(V*)' at word {verbs[0].start + 1}, not at word "
            f"{predicate + 1}; put the columns into the order of their predicates",
        )


def starred_tree(cells: Sequence[str], tags: Sequence[str], words: Sequence[str]) -> Tree:
    """The tree of one column of bracket bits, with the words and their tags as leaves."""
    stack: list[tuple[str, list[Tree]]] = []
    roots: list[Tree] = []
    for row, (entry, tag, word) in enumerate(zip(cells, tags, words, strict=True)):
        opened, closed = _split(row, entry)
        stack.extend((label, []) for label in opened)
        if len(stack) > DEEPEST:
            raise CellError(row, f"more than {DEEPEST} levels of brackets")
        if not stack:
            raise CellError(row, "a word outside of the tree's brackets")
        stack[-1][1].append(Tree(tag.translate(IN_BRACKETS), word))
        for _ in range(closed):
            if not stack:
                raise CellError(row, f"'{entry}' closes a bracket that was never opened")
            label, children = stack.pop()
            (stack[-1][1] if stack else roots).append(Tree(label, tuple(children)))
    if stack:
        raise CellError(
            len(cells) - 1, f"{counted(len(stack), 'bracket')} left open at the end of the sentence"
        )
    if len(roots) != 1:
        raise CellError(0, f"{counted(len(roots), 'tree')} in one sentence; put one root above them")
    return roots[0]


def _split(row: int, entry: str) -> tuple[list[str], int]:
    match = _CELL.fullmatch(entry)
    if match is None or not entry:
        raise CellError(row, f"'{entry}' is not in start-end notation such as '(A0*', '*' or '*)'")
    return match[1].split("(")[1:], len(match[2])


_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}
_BRACKET = re.compile("|".join(_BRACKETS))
_FUNCTION = re.compile(r"^([^-=]+)[-=].*")
DEEPEST = 200
"""Maximum number of levels of a tree (the English Web Treebank has 38); more are a converter's error."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # not tab and line feed
_EMPTY_LABEL = re.compile(r"\([ \t\n]*\(")
_BLANK_IN_LABEL = re.compile(r"\([ \t\n]*([^ \t\n()]*[^\S \t\n][^ \t\n()]*)")
"""A label that contains white space such as U+00A0, which words may contain."""
IN_BRACKETS = str.maketrans({"(": "-LRB-", ")": "-RRB-"})
"""Brackets in words as bracket notation writes them, for `str.translate`."""
_NOT_IN_A_LABEL = re.compile(r"[\s()\x00-\x1f\x7f-\x9f]+|%(?=[0-9A-F]{2})")
_QUOTED = re.compile(r"(?:%[0-9A-F]{2})+")


def plain_word(word: str) -> str:
    r"""A treebank's word as in the text: `(` for `-LRB-`, `1/2` for `1\/2`, `.` for OntoNotes' `/.`."""
    if "B-" in word:
        word = _BRACKET.sub(lambda match: _BRACKETS[match.group()], word)
    if word in {"/.", "/?"}:
        return word[1:]
    return word.replace("\\/", "/").replace("\\*", "*") if "\\" in word else word


def label_in_brackets(label: str) -> str:
    """A label in the bracket notation of our own files: characters that would end it are quoted (`%28`)."""
    return _NOT_IN_A_LABEL.sub(lambda match: quote(match.group(), safe=""), label)


def label_from_brackets(label: str) -> str:
    """The label that `label_in_brackets` wrote."""
    return _QUOTED.sub(lambda match: unquote(match.group()), label)


def parse_tree(text: str, deepest: int = DEEPEST) -> Tree:
    """The tree in bracket notation; raises `ValueError` if it is malformed, too deep or not writable."""
    if text.count("(") > deepest:
        depth = levels = 0
        for bracket in re.finditer(r"[()]", text):
            depth += 1 if bracket.group() == "(" else -1
            levels = max(levels, depth)
        if levels > deepest:
            raise ValueError(f"{counted(levels, 'level')} of brackets; at most {deepest} are read")
    control = _CONTROL.search(text)
    if control is not None:
        raise ValueError(f"a control character, {control.group()!a}, at column {control.start() + 1}")
    unlabelled = _EMPTY_LABEL.search(text, text.find("(") + 1)
    if unlabelled is not None:
        raise ValueError(f"a constituent without a label at column {unlabelled.start() + 1}")
    label = _BLANK_IN_LABEL.search(text)
    if label is not None:
        raise ValueError(f"white space in the label {label[1]!a} at column {label.start() + 1}")
    return Tree.parse(text)


def with_words(tree: Tree, words: Sequence[str]) -> Tree:
    """The tree over other words; raises `ValueError` if it has another number of leaves."""
    leaves = sum(1 for _ in tree.leaves())
    if leaves != len(words):
        raise ValueError(f"the tree has {counted(leaves, 'word')}, the sentence {len(words)}")
    rest = iter(words)
    return tree.fold(
        lambda node, children: Tree(node.label, next(rest) if node.is_preterminal else tuple(children))
    )


def rooted(tree: Tree) -> Tree:
    """The tree under a root TOP: a root with a label in `ROOTS` is renamed, others get TOP above them."""
    if tree.is_preterminal or tree.label not in ROOTS:
        return Tree("TOP", (tree,))
    return tree if tree.label == "TOP" else Tree("TOP", tree.children)


def without_functions(tree: Tree) -> Tree:
    """The tree without function tags and indices in labels of constituents (NP-SBJ-1 and NP=2 become NP)."""
    return tree.fold(
        lambda node, children: (
            node if node.is_preterminal else Tree(_FUNCTION.sub(r"\1", node.label), tuple(children))
        )
    )


def without_traces(tree: Tree) -> Tree | None:
    """The tree without -NONE- leaves and constituents left empty by them; `None` if nothing is left."""

    def prune(node: Tree, children: list[Tree | None]) -> Tree | None:
        if node.is_preterminal:
            return None if node.label == "-NONE-" else node
        rest = tuple([child for child in children if child is not None])
        return Tree(node.label, rest) if rest else None

    return tree.fold(prune)
