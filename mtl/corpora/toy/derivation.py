"""Lexicalised derivations, and the annotation layers that a derivation determines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from mtl.tasks.sentence import Arcs, Frame, Sentence, Span
from mtl.tasks.tree import Tree

UPOS = {
    "CC": "CCONJ", "CD": "NUM", "DT": "DET", "IN": "ADP", "JJ": "ADJ", "MD": "AUX", "NN": "NOUN",
    "NNS": "NOUN", "NNP": "PROPN", "POS": "PART", "PRP": "PRON", "PRP$": "PRON",
    "RB": "ADV", "RP": "ADP", "TO": "PART",
    "VB": "VERB", "VBD": "VERB", "VBG": "VERB", "VBN": "VERB", "VBP": "VERB", "VBZ": "VERB", "WDT": "PRON",
    "WP": "PRON", ",": "PUNCT", ".": "PUNCT",
}  # fmt: skip


@dataclass(eq=False, slots=True)
class Part:
    """A constituent or a word of a derivation; `relation` is that of its head to its parent's head.

    Parts are compared by identity: two equal noun phrases of a sentence are two arguments.
    """

    label: str
    relation: str = "dep"
    parts: tuple[Part, ...] = ()
    head: int = 0
    """Which of `parts` holds the head."""
    word: str = ""
    upos: str = ""
    entity: str | None = None
    to_next: bool = False
    """Whether it depends on the sibling to its right instead (conjunctions and commas between conjuncts)."""
    plural: bool = False

    def words(self) -> Iterator[Part]:
        """The parts that are words, from left to right."""
        if self.word:
            yield self
        for part in self.parts:
            yield from part.words()

    def head_word(self) -> Part:
        return self if self.word else self.parts[self.head].head_word()

    def walk(self) -> Iterator[Part]:
        yield self
        for part in self.parts:
            yield from part.walk()


@dataclass(eq=False, slots=True)
class Predication:
    """A predicate in the making: its word, and its arguments as they are derived."""

    verb: Part
    sense: str
    arguments: list[tuple[str, Part]]


def word(form: str, tag: str, relation: str, upos: str = "") -> Part:
    """A word; `upos` is given only if the tag does not determine it."""
    return Part(tag, relation, word=form, upos=upos or UPOS[tag])


def phrase(label: str, relation: str, *parts: Part, head: int = 0, plural: bool = False) -> Part:
    """A constituent over `parts`, headed by the one at index `head` (negative from the right)."""
    return Part(label, relation, parts, head % len(parts), plural=plural)


def annotate(root: Part, predications: list[Predication], name: str) -> Sentence:
    """The sentence of a finished derivation; `root` becomes the only child of TOP."""
    words = list(root.words())
    forms = _spelled(words)
    index = {id(leaf): number for number, leaf in enumerate(words)}
    spans = {}
    for part in root.walk():
        below = [index[id(leaf)] for leaf in part.words()]
        spans[id(part)] = (below[0], below[-1] + 1)
    governors = {id(root.head_word()): (0, "root")}
    for part in root.walk():
        for child, following in zip_longest(part.parts, part.parts[1:]):
            if child is part.parts[part.head]:
                continue
            governor = following if child.to_next and following is not None else part
            governors[id(child.head_word())] = (index[id(governor.head_word())] + 1, child.relation)
    arcs = [governors[id(leaf)] for leaf in words]
    frames = [
        Frame(
            index[id(predication.verb)],
            predication.sense,
            tuple(sorted(Span(*spans[id(part)], role) for role, part in predication.arguments)),
        )
        for predication in predications
    ]
    return Sentence(
        words=tuple(forms),
        tags=tuple(leaf.label for leaf in words),
        upos=tuple(leaf.upos for leaf in words),
        entities=tuple(sorted(Span(*spans[id(part)], part.entity) for part in root.walk() if part.entity)),
        arcs=Arcs(tuple(head for head, _ in arcs), tuple(relation for _, relation in arcs)),
        tree=Tree("TOP", (_tree(root, iter(forms)),)),
        frames=tuple(sorted(frames, key=lambda frame: frame.predicate)),
        id=name,
    )


def _spelled(words: list[Part]) -> list[str]:
    """The forms, with 'an' before vowels and a capital at the beginning."""
    forms = [leaf.word for leaf in words]
    for number, following in enumerate(forms[1:]):
        if forms[number] == "a" and following[0].lower() in "aeiou":
            forms[number] = "an"
    return [forms[0][0].upper() + forms[0][1:], *forms[1:]]


def _tree(part: Part, forms: Iterator[str]) -> Tree:
    if part.word:
        return Tree(part.label, next(forms))
    return Tree(part.label, tuple(_tree(child, forms) for child in part.parts))
