"""Gold and prediction in the formats that the official scorers read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from mtl.errors import InputError
from mtl.files import write_text
from tasks.sentence import Frame, Sentence, Span
from tasks.tree import Tree

_BLANK = re.compile(r"[\s\x00-\x1f\x7f]")
_EVALB_WORD = 90
"""Bytes of a word that EVALB gets: its buffers hold 100, and it only asks whether the words are the same."""


def export(
    gold: Sequence[Sentence], predicted: Sequence[Sentence], folder: Path, tasks: Sequence[str]
) -> list[Path]:
    """Write the scorers' files of `tasks` into `folder` and return their paths.

    A task's files hold only the sentences whose gold carries its layer; a task without any writes nothing.
    Raises `InputError` where gold and prediction do not pair or a format cannot hold what it is given.
    """
    if len(gold) != len(predicted):
        raise InputError(
            f"export: {len(gold)} gold sentences but {len(predicted)} predicted ones; pass the same"
        )
    for task in tasks:
        if task not in _FORMATS:
            raise InputError(f"export: unknown task '{task}'; choose from {', '.join(_FORMATS)}")
    paths = []
    for task in tasks:
        layer, formats = _FORMATS[task]
        pairs = [pair for pair in zip(gold, predicted, strict=True) if getattr(pair[0], layer) is not None]
        for pair in pairs:
            _check(*pair, layer)
        for name, write in formats.items():
            if pairs:
                paths.append(folder / name)
                write_text(paths[-1], "".join(write(*pair) for pair in pairs))
    return paths


def _check(gold: Sentence, predicted: Sentence, layer: str) -> None:
    where = f"export: sentence '{gold.id}' ({' '.join(gold.words[:5])} …)"
    if not gold.words:
        raise InputError(f"{where} has no words, which no scorer can read; leave it out")
    if gold.words != predicted.words:
        raise InputError(f"{where}: gold and prediction have different words; predict on the gold words")
    if getattr(predicted, layer) is None:
        raise InputError(f"{where}: the prediction has no {layer}; predict this task or leave it out")


def _cell(text: str) -> str:
    """Text that fits one column: no blanks or control characters, and something at all."""
    return _BLANK.sub("_", text) or "_"


def _lines(rows: Iterable[str]) -> str:
    return "".join(f"{row}\n" for row in rows) + "\n"


def _tags(gold: Sentence, predicted: Sentence) -> str:
    assert gold.tags is not None
    assert predicted.tags is not None
    columns = zip(gold.words, gold.tags, predicted.tags, strict=True)
    return _lines("\t".join(map(_cell, row)) for row in columns)


def _entities(gold: Sentence, predicted: Sentence) -> str:
    assert gold.entities is not None
    assert predicted.entities is not None
    # conlleval takes the word -X- for a sentence boundary.
    words = ("-X-_" if word == "-X-" else word for word in gold.words)
    columns = zip(words, _bio(gold, gold.entities), _bio(predicted, predicted.entities), strict=True)
    return _lines(" ".join(map(_cell, row)) for row in columns)


def _bio(sentence: Sentence, entities: Sequence[Span]) -> list[str]:
    tags = ["O"] * len(sentence)
    for start, end, label in entities:
        if any(tag != "O" for tag in tags[start:end]):
            raise InputError(
                f"export: sentence '{sentence.id}': overlapping entities at word {start} have no BIO"
            )
        tags[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
    return tags


def _conllu(sentence: Sentence) -> str:
    assert sentence.arcs is not None
    blank = ("_",) * len(sentence)
    columns = zip(
        sentence.words,
        sentence.upos or blank,
        sentence.tags or blank,
        sentence.arcs.heads,
        sentence.arcs.relations,
        strict=True,
    )
    rows = [
        f"{number}\t{_cell(word)}\t_\t{_cell(upos)}\t{_cell(tag)}\t_\t{head}\t{_cell(relation)}\t_\t_"
        for number, (word, upos, tag, head, relation) in enumerate(columns, start=1)
    ]
    return _lines([f"# sent_id = {_cell(sentence.id)}", *rows])


def _brackets(gold: Sentence, sentence: Sentence) -> str:
    """One tree on a line, with the gold's words and preterminals, by which EVALB deletes punctuation."""
    assert gold.tree is not None
    assert sentence.tree is not None
    tagged = zip(gold.tree.leaves(), gold.words, strict=True)
    leaves = iter([Tree(leaf.label, _evalb_word(word)) for leaf, word in tagged])
    tree = _with_leaves(sentence.tree, leaves)
    if next(leaves, None) is not None:
        raise InputError(f"export: sentence '{gold.id}': the predicted tree does not span all words")
    return f"{tree}\n"


def _with_leaves(tree: Tree, leaves: Iterator[Tree]) -> Tree:
    if isinstance(tree.children, str):
        leaf = next(leaves, None)
        if leaf is None:
            raise InputError(
                f"export: the predicted tree has more words than the sentence, at '{tree.children}'"
            )
        return leaf
    return Tree(tree.label, tuple(_with_leaves(child, leaves) for child in tree.children))


def _evalb_word(word: str) -> str:
    word = _cell(word).replace("(", "-LRB-").replace(")", "-RRB-")
    return word.encode()[:_EVALB_WORD].decode(errors="ignore")


def _props(sentence: Sentence, also: Sequence[Frame] = ()) -> str:
    """CoNLL-2005 columns; `also` adds predicates without arguments of their own."""
    frames = list(sentence.frames or ())
    known = {frame.predicate for frame in frames}
    frames += [Frame(frame.predicate, None, ()) for frame in also if frame.predicate not in known]
    frames.sort(key=lambda frame: frame.predicate)
    targets = ["-"] * len(sentence)
    for frame in frames:
        if targets[frame.predicate] != "-":
            raise InputError(
                f"export: sentence '{sentence.id}': two frames for the predicate at word {frame.predicate}"
            )
        # "-" is the scorer's mark of a word that is no predicate.
        targets[frame.predicate] = _cell(sentence.words[frame.predicate]).replace("-", "_")
    columns = zip(targets, *(_column(sentence, frame) for frame in frames), strict=True)
    return _lines(" ".join(row) for row in columns)


def _column(sentence: Sentence, frame: Frame) -> list[str]:
    spans = list(frame.arguments)
    covered = [word for start, end, _ in spans for word in range(start, end)]
    if len(covered) != len(set(covered)):
        raise InputError(
            f"export: sentence '{sentence.id}': arguments of the predicate at word {frame.predicate} overlap"
        )
    if frame.predicate not in covered:
        # V does not count, but an argument with V inside it would be taken for a discontinuous one.
        spans.append(Span(frame.predicate, frame.predicate + 1, "V"))
    column = ["*"] * len(sentence)
    for start, end, label in spans:
        column[start] = f"({_cell(label)}{column[start]}"
        column[end - 1] += ")"
    return column


_Writer = Callable[[Sentence, Sentence], str]
_FORMATS: dict[str, tuple[str, dict[str, _Writer]]] = {
    "pos": ("tags", {"pos.tsv": _tags}),
    "ner": ("entities", {"ner.conll": _entities}),
    "dep": (
        "arcs",
        {
            "dep.gold.conllu": lambda gold, _: _conllu(gold),
            "dep.pred.conllu": lambda _, predicted: _conllu(predicted),
        },
    ),
    "con": (
        "tree",
        {
            "con.gold.mrg": lambda gold, _: _brackets(gold, gold),
            "con.pred.mrg": _brackets,
        },
    ),
    "srl": (
        "frames",
        {
            # srl-eval.pl drops predicates that only the prediction has; as gold predicates without arguments
            # their arguments count as excess, as a score over (predicate, start, end, role) demands.
            "srl.gold.props": lambda gold, predicted: _props(gold, predicted.frames or ()),
            "srl.pred.props": lambda _, predicted: _props(predicted),
        },
    ),
}
