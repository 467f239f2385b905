"""Penn Treebank brackets: trees on one or many lines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mtl.corpora.formats.columns import cell
from mtl.corpora.formats.lines import malformed, name_of, read_lines
from mtl.corpora.formats.soundness import fault
from mtl.corpora.formats.treebank import (
    IN_BRACKETS,
    label_in_brackets,
    parse_tree,
    plain_word,
    rooted,
    with_words,
    without_functions,
    without_traces,
)
from mtl.tasks.binarise import constituents
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.tasks.tree import Tree

_TOKEN = re.compile(r"[()\n]|[^ \t\n()]+")
_COLUMN = re.compile(r" at column (\d+)")


class _Text(NamedTuple):
    line: int
    text: str


def read_brackets(path: Path, clean: bool = True) -> list[Sentence]:
    """Sentences with trees and tags, all trees under one root TOP (`treebank.rooted`).

    `clean` removes traces (-NONE-) and function tags (NP-SBJ, NP=2). A sentence has a note for each word
    whose tag is also a label of constituents in the file, which suggests trees written without tags.
    """
    sentences: list[Sentence] = []
    for number, text in enumerate(_texts(path), start=1):
        try:
            tree: Tree | None = parse_tree(text.text)
        except ValueError as error:
            raise _at_line(path, text, str(error)) from error
        if clean and tree is not None:
            tree = without_traces(without_functions(tree))
        if tree is None:
            raise malformed(path, text.line, "a tree of nothing but traces; take it out")
        leaves = list(tree.leaves())
        words = tuple([plain_word(leaf.children) for leaf in leaves if isinstance(leaf.children, str)])
        sentence = Sentence(
            words=words,
            tags=tuple([leaf.label for leaf in leaves]),
            tree=rooted(with_words(tree, words)),
            id=f"{name_of(path)}-{number:04d}",
            place=f"{path}:{text.line}",
        )
        problem = fault(sentence)
        if problem is not None:
            raise malformed(path, text.line, problem.what)
        sentences.append(sentence)
    return _noted(sentences)


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
        replace(sentence, notes=(note,) * sum(tag in both for tag in sentence.tags or ()))
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
