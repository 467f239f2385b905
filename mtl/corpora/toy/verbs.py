"""Verb forms of the generated corpus: tense, voice, auxiliaries and agreement."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

from mtl.corpora.toy.derivation import Part, word
from mtl.corpora.toy.lexicon import VERBS, Kind, Verb

Form = Literal["finite", "question", "infinitive", "imperative"]
_SIMPLE = ("trans", "agent", "theme", "give", "up")
_TENSES = ("past", "past", "past", "present", "modal", "did", "perfect", "progressive")


class Choice(NamedTuple):
    """A verb and its voice."""

    verb: Verb
    passive: bool

    @property
    def subject_role(self) -> str:
        return "ARG1" if self.passive or self.verb.pattern == "theme" else "ARG0"

    @property
    def subject_relation(self) -> str:
        return "nsubj:pass" if self.passive else "nsubj"


class Verbs:
    """Draws kinds of subjects, and verbs with their voice."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def kind(self) -> Kind:
        return self._rng.choices(("person", "org", "thing"), (65, 15, 20))[0]

    def verb(self, kind: Kind, depth: int) -> Choice:
        """A verb and voice that take a subject of this kind."""
        verbs = [verb for verb in VERBS if depth > 0 or verb.pattern in _SIMPLE]
        active = [Choice(verb, False) for verb in verbs if kind in verb.subjects]
        passive = [Choice(verb, True) for verb in verbs if _takes(verb, kind)]
        passive += [Choice(verb, True) for verb in verbs if verb.pattern == "give" and kind == "thing"]
        return self._rng.choice(passive if passive and (not active or self._rng.random() < 0.3) else active)

    def active(self, subject: Kind) -> Choice:
        """A verb without clausal complements, in the active voice."""
        verbs = [verb for verb in VERBS if verb.pattern in _SIMPLE and subject in verb.subjects]
        return Choice(self._rng.choice(verbs), False)

    def taking(self, kind: Kind) -> Choice:
        """A verb that takes an object of this kind, in the active voice."""
        return Choice(self._rng.choice([verb for verb in VERBS if _takes(verb, kind)]), False)


def _takes(verb: Verb, kind: Kind) -> bool:
    return verb.pattern in ("trans", "up") and kind in verb.objects


def verb_forms(rng: random.Random, choice: Choice, form: Form, plural: bool) -> tuple[list[Part], Part]:
    """Auxiliaries and main verb as words that agree with the subject."""
    verb = choice.verb
    chain: list[tuple[str, str]] = []
    main = (verb.base, "VB")
    if form == "infinitive":
        chain = [("to", "TO")]
    elif form in ("finite", "question"):
        tense = rng.choice(_TENSES if form == "finite" else _TENSES[4:])
        be = rng.choice((("are", "VBP") if plural else ("is", "VBZ"), ("were" if plural else "was", "VBD")))
        if choice.passive and tense in ("past", "present", "did", "progressive"):
            chain = [be]
        elif tense == "past":
            main = (verb.past, "VBD")
        elif tense == "present":
            main = (verb.base, "VBP") if plural else (verb.third, "VBZ")
        elif tense == "modal":
            chain = [(rng.choice(("will", "can", "may", "must")), "MD")]
        elif tense == "did":
            chain = [("did", "VBD")]
        elif tense == "perfect":
            chain = [rng.choice((("have", "VBP") if plural else ("has", "VBZ"), ("had", "VBD")))]
            main = (verb.participle, "VBN")
        else:
            chain = [be]
            main = (verb.gerund, "VBG")
    if choice.passive:
        if main == (verb.participle, "VBN"):
            chain.append(("been", "VBN"))
        elif chain[-1][1] in ("MD", "TO"):
            chain.append(("be", "VB"))
        main = (verb.participle, "VBN")
    if form == "finite" and chain[:1] == [("is", "VBZ")] and rng.random() < 0.3:
        chain[0] = ("'s", "VBZ")  # the same form as the possessive
    auxiliaries = [
        word(*aux, "mark" if aux[1] == "TO" else "aux", "PART" if aux[1] == "TO" else "AUX") for aux in chain
    ]
    if choice.passive:
        auxiliaries[-1].relation = "aux:pass"
    return auxiliaries, word(*main, "root")
