"""Dependencies from trees of constituents: each constituent's head by rules, and relations from labels.

The head rules are those of Collins (1999, appendix A), for the labels of the Penn Treebank, with the rule for
coordination: a head that follows a conjunction gives way to the part before the conjunction. Punctuation and
traces are heads only of constituents that have nothing else. Relations are made from the labels of the
dependent's and the head's constituent, in the manner of Penn2Malt (Nivre 2006): `SUB`, `OBJ`, `PRD`, `VC`,
`SBAR`, `PMOD`, `NMOD`, `AMOD`, `VMOD`, `P` for punctuation, `DEP` for the rest, and `root`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mtl.tasks.sentence import Arcs
from mtl.tasks.tree import ROOTS, Tree

NO_RULE = "constituent whose label has no head rule: its head is in its first part"
"""The note of a tree with a label that is not one of the Penn Treebank's."""


class _Rule(NamedTuple):
    """A search among the children: for the labels one after the other or, with `any`, all at once."""

    from_left: bool
    labels: tuple[str, ...] = ()
    any: bool = False


def _left(labels: str = "") -> tuple[_Rule, ...]:
    return (_Rule(True, tuple(labels.split())),)


def _right(labels: str = "") -> tuple[_Rule, ...]:
    return (_Rule(False, tuple(labels.split())),)


_OF_NOUNS = (
    _Rule(False, ("NN", "NNP", "NNPS", "NNS", "NML", "NX", "POS", "JJR"), any=True),
    _Rule(True, ("NP",)),
    _Rule(False, ("$", "ADJP", "PRN"), any=True),
    _Rule(False, ("CD",)),
    _Rule(False, ("JJ", "JJS", "RB", "QP"), any=True),
    _Rule(False),
)
_COLLINS: dict[str, tuple[_Rule, ...]] = {
    "ADJP": _left("NNS QP NN $ ADVP JJ VBN VBG ADJP JJR NP JJS DT FW RBR RBS SBAR RB"),
    "ADVP": _right("RB RBR RBS FW ADVP TO CD JJR JJ IN NP JJS NN"),
    "CONJP": _right("CC RB IN"),
    "FRAG": _right(),
    "INTJ": _left(),
    "LST": _right("LS :"),
    "NAC": _left("NN NNS NNP NNPS NP NAC EX $ CD QP PRP VBG JJ JJS JJR ADJP FW"),
    "PP": _right("IN TO VBG VBN RP FW"),
    "PRN": _left(),
    "PRT": _right("RP"),
    "QP": _left("$ IN NNS NN JJ RB DT CD NCD QP JJR JJS"),
    "RRC": _right("VP NP ADVP ADJP PP"),
    "S": _left("TO IN VP S SBAR ADJP UCP NP"),
    "SBAR": _left("WHNP WHPP WHADVP WHADJP IN DT S SQ SINV SBAR FRAG"),
    "SBARQ": _left("SQ S SINV SBARQ FRAG"),
    "SINV": _left("VBZ VBD VBP VB MD VP S SINV ADJP NP"),
    "SQ": _left("VBZ VBD VBP VB MD VP SQ"),
    "UCP": _right(),
    "VP": _left("TO VBD VBN MD VBZ VB VBG VBP VP ADJP NN NNS NP"),
    "WHADJP": _left("CC WRB JJ ADJP"),
    "WHADVP": _right("CC WRB"),
    "WHNP": _left("WDT WP WP$ WHADJP WHPP WHNP"),
    "WHPP": _right("IN TO FW"),
    "X": _right(),
    **dict.fromkeys(("NP", "NX", "NML"), _OF_NOUNS),  # NML is younger than the rules
    **dict.fromkeys(ROOTS, _left("S SINV SQ SBARQ")),
}
_PUNCTUATION = frozenset([",", ".", ":", "``", "''", "-LRB-", "-RRB-", "(", ")", "HYPH", "NFP", "-NONE-"])
"""Tags of words that are heads only if a constituent has no other word; traces are among them."""
_PARTS = re.compile(r"[-=|]")
_CLAUSES = frozenset(["S", "SINV", "SQ", "SBARQ", "FRAG"])
_MODIFIERS = {
    **dict.fromkeys(("PP", "WHPP"), "PMOD"),
    **dict.fromkeys(("NP", "NX", "NML", "NAC", "WHNP"), "NMOD"),
    **dict.fromkeys(("ADJP", "ADVP", "QP", "WHADJP", "WHADVP"), "AMOD"),
    **dict.fromkeys(("VP", "S", "SINV", "SQ", "SBARQ"), "VMOD"),
    "SBAR": "SBAR",
}
"""The relation of a word whose constituent is below one with such a label, if no other rule holds."""


class _Part(NamedTuple):
    """A constituent or a word below another constituent: its head, a word from 1."""

    head: int
    label: str
    functions: tuple[str, ...]

    @property
    def is_marks(self) -> bool:
        """Whether its head, and so all of it, is punctuation."""
        return self.label in _PUNCTUATION


class _Words:
    """What is known of the words while a tree is folded."""

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.relations: list[str] = []
        self.without_rule = 0

    def part(self, node: Tree, children: list[_Part]) -> _Part:
        """A node as a part of its parent; all its children but its head's become dependents."""
        if node.is_preterminal:
            self.heads.append(0)
            self.relations.append("root")
            return _Part(len(self.heads), node.label, ())
        label, *functions = _PARTS.split(node.label)
        self.without_rule += label not in _COLLINS
        chosen = _head(label, children)
        head = children[chosen]
        for place, child in enumerate(children):
            if place != chosen:
                self.heads[child.head - 1] = head.head
                self.relations[child.head - 1] = _relation(label, children, place, chosen)
        if head.is_marks:
            label = head.label
        return _Part(head.head, label, tuple(functions))


def arcs_from(tree: Tree) -> tuple[Arcs, int]:
    """The dependency tree of a tree of constituents, and how many of its labels have no head rule.

    Function tags in labels (`NP-SBJ`) give subjects and predicates; without any, the last noun phrase before
    a verb phrase is its subject.
    """
    words = _Words()
    tree.fold(words.part)
    return Arcs(tuple(words.heads), tuple(words.relations)), words.without_rule


def _head(label: str, children: Sequence[_Part]) -> int:
    """The place of the child with the head."""
    places = [place for place, child in enumerate(children) if not child.is_marks]
    if not places:
        return 0
    found = _searched(_COLLINS.get(label, _left()), children, places)
    before = places.index(found)
    if before > 1 and children[places[before - 1]].label in ("CC", "CONJP"):
        return places[before - 2]
    return found


def _searched(rules: Iterable[_Rule], children: Sequence[_Part], places: Sequence[int]) -> int:
    in_order = list(places)
    for rule in rules:
        in_order = list(places) if rule.from_left else list(places)[::-1]
        for wanted in [rule.labels] if rule.any else [(label,) for label in rule.labels]:
            for place in in_order:
                if children[place].label in wanted:
                    return place
    return in_order[0]


def _relation(label: str, children: Sequence[_Part], place: int, chosen: int) -> str:
    """The relation of a child to the head of their parent, whose label is given."""
    child, head = children[place], children[chosen]
    if child.is_marks:
        return "P"
    if "SBJ" in child.functions:
        return "SUB"
    if "PRD" in child.functions:
        return "PRD"
    if label in _CLAUSES and _is_subject(children, place, chosen):
        return "SUB"
    if label == "VP" and child.label == "VP" and head.label != "VP":
        return "VC"
    if label == "VP" and child.label == "NP" and place > chosen and not child.functions:
        return "OBJ"
    return _MODIFIERS.get(label, "DEP")


def _is_subject(children: Sequence[_Part], place: int, chosen: int) -> bool:
    """Whether a noun phrase without function tags is the subject: the last before a verb phrase, or the
    first after a verb that stands before it (SQ and SINV)."""
    if any("SBJ" in child.functions for child in children):
        return False
    nouns = [each for each, child in enumerate(children) if child.label == "NP" and not child.functions]
    if children[chosen].label == "VP":
        return place in nouns and place == max((each for each in nouns if each < chosen), default=-1)
    is_verb = children[chosen].label in ("VBZ", "VBD", "VBP", "VB", "MD")
    return is_verb and place in nouns and place == min((each for each in nouns if each > chosen), default=-1)
