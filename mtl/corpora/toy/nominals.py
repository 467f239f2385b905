"""Noun phrases of the generated corpus: names, pronouns, and common nouns with determiners and modifiers."""

from __future__ import annotations

import random

from mtl.corpora.toy.derivation import Part, phrase, word
from mtl.corpora.toy.lexicon import ADJECTIVES, DAYS, NOUNS, Kind, Names, Noun

_ENTITY = {"person": "PER", "org": "ORG", "place": "LOC"}
_PRONOUNS = {
    ("person", "nsubj"): (("he", False), ("she", False), ("they", True)),
    ("person", "obj"): (("him", False), ("her", False), ("them", True)),
    ("thing", "nsubj"): (("it", False), ("they", True)),
    ("thing", "obj"): (("it", False), ("them", True)),
}
_POSSESSIVES = ("his", "her", "their")


class Nominals:
    """Draws noun phrases; `novelty` is the share of names taken from `new` instead of `known`."""

    def __init__(self, rng: random.Random, known: Names, new: Names, novelty: float) -> None:
        self._rng = rng
        self._known = known
        self._new = new
        self._novelty = novelty

    def name(self, kind: Kind, relation: str) -> Part:
        """A named person, organisation or place as a noun phrase that is one entity."""
        if kind == "org" and self._rng.random() < 0.2:
            # The place within the organisation's name is not an entity of its own.
            inner = phrase("NP", "nmod", self._nnp("place", "nmod"))
            of = phrase("PP", "nmod", word("of", "IN", "case"), inner, head=-1)
            head = word(self._rng.choice(("Bank", "University", "Club")), "NNP", relation)
            named = phrase("NP", relation, phrase("NP", relation, head), of)
        elif kind == "org" and self._rng.random() < 0.4:
            last = word(self._rng.choice(("Corp", "Bank", "Press")), "NNP", relation)
            named = phrase("NP", relation, self._nnp("org", "compound"), last, head=-1)
        elif kind == "person" and self._rng.random() < 0.4:
            named = phrase("NP", relation, self._nnp("person", relation), self._nnp("surname", "flat"))
        else:
            # A new name alone is a person's, or a place's after a preposition; organisations need 'Corp'.
            novel = kind != "org"
            named = phrase("NP", relation, self._nnp(kind, relation, novel))
        named.entity = _ENTITY[kind]
        return named

    def common(self, kind: Kind, relation: str, noun: Noun | None = None) -> tuple[Part, Noun]:
        """A phrase around a common noun of `kind` (or around `noun`), and that noun."""
        noun = noun or self._rng.choice([noun for noun in NOUNS if noun.kind == kind])
        plural = self._rng.random() < 0.25
        parts = [self._determiner(plural)]
        if self._rng.random() < 0.3:
            parts.append(word(self._rng.choice(ADJECTIVES), "JJ", "amod"))
        if kind == "thing" and self._rng.random() < 0.15:
            stone = self._rng.choice(("stone", "garden", "light", "paint", "present"))
            parts.append(word(stone, "NN", "compound"))
        parts.append(word(noun.plural if plural else noun.singular, "NNS" if plural else "NN", relation))
        return phrase("NP", relation, *parts, head=-1, plural=plural), noun

    def any(self, kind: Kind, relation: str, pronouns: bool = True) -> tuple[Part, Noun | None]:
        """A phrase around a name, a pronoun or a common noun, and the common noun (`None` for the others)."""
        draw = self._rng.random()
        case = "nsubj" if relation.startswith("nsubj") else "obj"
        if kind in _ENTITY and draw < 0.45:
            return self.name(kind, relation), None
        if pronouns and draw < 0.6 and (kind, case) in _PRONOUNS:
            form, plural = self._rng.choice(_PRONOUNS[kind, case])
            return phrase("NP", relation, word(form, "PRP", relation), plural=plural), None
        return self.common(kind, relation)

    def prepositional(self, preposition: str, inner: Part) -> Part:
        """A preposition before `inner`, with the relation of `inner`."""
        return phrase("PP", inner.relation, word(preposition, "IN", "case"), inner, head=-1)

    def time(self) -> Part:
        """An adjunct of time, of one of three forms."""
        draw = self._rng.random()
        if draw < 0.4:
            return phrase("NP", "obl:unmarked", word("yesterday", "NN", "obl:unmarked"))
        if draw < 0.7:
            week = word(self._rng.choice(("week", "year")), "NN", "obl:unmarked")
            return phrase("NP", "obl:unmarked", word("last", "JJ", "amod"), week, head=-1)
        return self.prepositional("on", phrase("NP", "obl", word(self._rng.choice(DAYS), "NNP", "obl")))

    def _determiner(self, plural: bool) -> Part:
        draw = self._rng.random()
        if draw < 0.12:
            return word(self._rng.choice(_POSSESSIVES), "PRP$", "nmod:poss")
        if draw < 0.24:
            owner = self._nnp("person", "nmod:poss")
            owner.entity = "PER"
            return phrase("NP", "nmod:poss", owner, word("'s", "POS", "case"))
        if plural:
            form, tag, relation = self._rng.choice(
                (("the", "DT", "det"), ("some", "DT", "det"), ("those", "DT", "det"), ("two", "CD", "nummod"))
            )
            return word(form, tag, relation)
        return word(self._rng.choice(("the", "the", "a", "a", "that", "every")), "DT", "det")

    def _nnp(self, pool: str, relation: str, novel: bool = True) -> Part:
        names = self._new if novel and self._rng.random() < self._novelty else self._known
        return word(self._rng.choice(getattr(names, pool)), "NNP", relation)
