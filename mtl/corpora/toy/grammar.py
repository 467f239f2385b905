"""The grammar of the generated corpus: derivations with their layers, noun phrases, verb forms, clauses."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, NamedTuple

from mtl.corpora.toy.lexicon import (
    ADJECTIVES,
    DAYS,
    FREQUENCIES,
    MANNERS,
    NOUNS,
    VERBS,
    Kind,
    Names,
    Noun,
    Verb,
)
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
class Constituent:
    """A constituent or a word of a derivation; `relation` is that of its head to its parent's head.

    Parts are compared by identity: two equal noun phrases of a sentence are two arguments.
    """

    label: str
    relation: str = "dep"
    parts: tuple[Constituent, ...] = ()
    head: int = 0
    """Which of `parts` holds the head."""
    word: str = ""
    upos: str = ""
    entity: str | None = None
    to_next: bool = False
    """Whether it depends on the sibling to its right instead (conjunctions and commas between conjuncts)."""
    plural: bool = False

    def words(self) -> Iterator[Constituent]:
        """The parts that are words, from left to right."""
        if self.word:
            yield self
        for part in self.parts:
            yield from part.words()

    def head_word(self) -> Constituent:
        return self if self.word else self.parts[self.head].head_word()

    def walk(self) -> Iterator[Constituent]:
        yield self
        for part in self.parts:
            yield from part.walk()


@dataclass(eq=False, slots=True)
class Predication:
    """A predicate in the making: its word, and its arguments as they are derived."""

    verb: Constituent
    sense: str
    arguments: list[tuple[str, Constituent]]


def word(form: str, tag: str, relation: str, upos: str = "") -> Constituent:
    """A word; `upos` is given only if the tag does not determine it."""
    return Constituent(tag, relation, word=form, upos=upos or UPOS[tag])


def phrase(
    label: str, relation: str, *parts: Constituent, head: int = 0, plural: bool = False
) -> Constituent:
    """A constituent over `parts`, headed by the one at index `head` (negative from the right)."""
    return Constituent(label, relation, parts, head % len(parts), plural=plural)


def annotate(root: Constituent, predications: list[Predication], name: str) -> Sentence:
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


def _spelled(words: list[Constituent]) -> list[str]:
    """The forms, with 'an' before vowels and a capital at the beginning."""
    forms = [leaf.word for leaf in words]
    for number, following in enumerate(forms[1:]):
        if forms[number] == "a" and following[0].lower() in "aeiou":
            forms[number] = "an"
    return [forms[0][0].upper() + forms[0][1:], *forms[1:]]


def _tree(part: Constituent, forms: Iterator[str]) -> Tree:
    if part.word:
        return Tree(part.label, next(forms))
    return Tree(part.label, tuple(_tree(child, forms) for child in part.parts))


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

    def name(self, kind: Kind, relation: str) -> Constituent:
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

    def common(self, kind: Kind, relation: str, noun: Noun | None = None) -> tuple[Constituent, Noun]:
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

    def any(self, kind: Kind, relation: str, pronouns: bool = True) -> tuple[Constituent, Noun | None]:
        """A phrase around a name, a pronoun or a common noun, and the common noun (`None` for the others)."""
        draw = self._rng.random()
        case = "nsubj" if relation.startswith("nsubj") else "obj"
        if kind in _ENTITY and draw < 0.45:
            return self.name(kind, relation), None
        if pronouns and draw < 0.6 and (kind, case) in _PRONOUNS:
            form, plural = self._rng.choice(_PRONOUNS[kind, case])
            return phrase("NP", relation, word(form, "PRP", relation), plural=plural), None
        return self.common(kind, relation)

    def prepositional(self, preposition: str, inner: Constituent) -> Constituent:
        """A preposition before `inner`, with the relation of `inner`."""
        return phrase("PP", inner.relation, word(preposition, "IN", "case"), inner, head=-1)

    def time(self) -> Constituent:
        """An adjunct of time, of one of three forms."""
        draw = self._rng.random()
        if draw < 0.4:
            return phrase("NP", "obl:unmarked", word("yesterday", "NN", "obl:unmarked"))
        if draw < 0.7:
            week = word(self._rng.choice(("week", "year")), "NN", "obl:unmarked")
            return phrase("NP", "obl:unmarked", word("last", "JJ", "amod"), week, head=-1)
        return self.prepositional("on", phrase("NP", "obl", word(self._rng.choice(DAYS), "NNP", "obl")))

    def _determiner(self, plural: bool) -> Constituent:
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

    def _nnp(self, pool: str, relation: str, novel: bool = True) -> Constituent:
        names = self._new if novel and self._rng.random() < self._novelty else self._known
        return word(self._rng.choice(getattr(names, pool)), "NNP", relation)


Form = Literal["finite", "question", "infinitive", "imperative"]
_SIMPLE = ("trans", "agent", "theme", "give", "up")
_TENSES = ("past", "past", "past", "present", "modal", "did", "perfect", "progressive")


class VerbAndVoice(NamedTuple):
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

    def verb(self, kind: Kind, depth: int) -> VerbAndVoice:
        """A verb and voice that take a subject of this kind."""
        verbs = [verb for verb in VERBS if depth > 0 or verb.pattern in _SIMPLE]
        active = [VerbAndVoice(verb, False) for verb in verbs if kind in verb.subjects]
        passive = [VerbAndVoice(verb, True) for verb in verbs if _takes(verb, kind)]
        passive += [VerbAndVoice(verb, True) for verb in verbs if verb.pattern == "give" and kind == "thing"]
        return self._rng.choice(passive if passive and (not active or self._rng.random() < 0.3) else active)

    def active(self, subject: Kind) -> VerbAndVoice:
        """A verb without clausal complements, in the active voice."""
        verbs = [verb for verb in VERBS if verb.pattern in _SIMPLE and subject in verb.subjects]
        return VerbAndVoice(self._rng.choice(verbs), False)

    def taking(self, kind: Kind) -> VerbAndVoice:
        """A verb that takes an object of this kind, in the active voice."""
        return VerbAndVoice(self._rng.choice([verb for verb in VERBS if _takes(verb, kind)]), False)


def _takes(verb: Verb, kind: Kind) -> bool:
    return verb.pattern in ("trans", "up") and kind in verb.objects


def verb_forms(
    rng: random.Random, choice: VerbAndVoice, form: Form, plural: bool
) -> tuple[list[Constituent], Constituent]:
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


_QUALITIES = ("old", "small", "famous", "present", "open")


def copular(rng: random.Random, subject: Constituent) -> tuple[Constituent, Predication]:
    """The verb phrase of a copular clause on `subject`, and what it predicates."""
    form, tag = ("are", "VBP") if subject.plural else rng.choice((("is", "VBZ"), ("was", "VBD")))
    be = word(form, tag, "cop", "AUX")
    negation = [word("not", "RB", "advmod", "PART")] if rng.random() < 0.2 else []
    quality = phrase("ADJP", "root", word(rng.choice(_QUALITIES), "JJ", "root"))
    predication = Predication(be, "be.01", [("ARG1", subject), ("ARG2", quality)])
    predication.arguments += [("ARGM-NEG", part) for part in negation]
    return phrase("VP", "root", be, *negation, quality, head=-1), predication


_SUBORDINATORS = (("because", "ARGM-CAU"), ("while", "ARGM-TMP"), ("before", "ARGM-TMP"), ("if", "ARGM-ADV"))


class Filler(NamedTuple):
    """A phrase that fills an argument's role; the prefix of the role is 'R-' for a relative pronoun."""

    prefix: str
    part: Constituent


class VerbPhrase(NamedTuple):
    """A verb phrase, and what its main verb predicates."""

    part: Constituent
    predication: Predication
    fronted: tuple[Constituent, ...] = ()
    """The auxiliary that a question puts before its subject, if there is one."""


class Clauses:
    """Draws clauses, and collects what they predicate in `predications`."""

    def __init__(self, rng: random.Random, nominals: Nominals) -> None:
        self.rng = rng
        self.nominals = nominals
        self.verbs = Verbs(rng)
        self.predications: list[Predication] = []

    def noun_phrase(self, kind: Kind, relation: str, depth: int) -> Constituent:
        """A noun phrase, perhaps coordinated or modified."""
        draw = self.rng.random()
        if draw < 0.12:
            first, second = self._noun(kind, relation), self._noun(kind, "conj")
            pair = [first, word(self.rng.choice(("and", "or")), "CC", "cc"), second]
            if self.rng.random() < 0.3:
                pair[1:1] = [word(",", ",", "punct"), self._noun(kind, "conj")]
            for part in pair:
                part.to_next = part.label in ("CC", ",")
            return phrase("NP", relation, *pair, plural=True)
        if depth > 0 and draw < 0.3:
            antecedent, _ = self.nominals.common(kind, relation)
            clause = self.relative(antecedent, kind, depth - 1)
            return phrase("NP", relation, antecedent, clause, plural=antecedent.plural)
        return self._plain(kind, relation)

    def clause(self, depth: int, front: bool = False) -> tuple[list[Constituent], VerbPhrase]:
        """The parts of a finite clause (the verb phrase last), and its verb phrase."""
        if self.rng.random() < 0.1:
            subject = self._plain(self.verbs.kind(), "nsubj")
            part, predication = copular(self.rng, subject)
            self.predications.append(predication)
            return [subject, part], VerbPhrase(part, predication)
        kind = self.verbs.kind()
        choice = self.verbs.verb(kind, depth)
        subject = self.noun_phrase(kind, choice.subject_relation, depth)
        verb_phrase = self.verb_phrase(choice, [Filler("", subject)], "finite", subject.plural, depth)
        parts = [subject, verb_phrase.part]
        if front and self.rng.random() < 0.15:
            time = self.nominals.time()
            verb_phrase.predication.arguments.append(("ARGM-TMP", time))
            parts = [time, word(",", ",", "punct"), *parts]
        return parts, verb_phrase

    def sentence_of(self, parts: Sequence[Constituent], relation: str) -> Constituent:
        return phrase("S", relation, *parts, head=-1)

    def relative(self, antecedent: Constituent, kind: Kind, depth: int) -> Constituent:
        """A relative clause on its subject, or on its object with or without a relative pronoun."""
        pronoun = ("who", "WP") if kind == "person" else ("which", "WDT")
        if self.rng.random() < 0.5:
            pronoun = ("that", "WDT")
        if self.rng.random() < 0.5:
            choice = self.verbs.taking(kind)
            subject = self._plain(self.rng.choice(sorted(choice.verb.subjects)), "nsubj")
            gap = phrase("WHNP", "obj", word(*pronoun, "obj"))
            silent = self.rng.random() < 0.4
            fillers = [Filler("", antecedent), *([] if silent else [Filler("R-", gap)])]
            inner = self.verb_phrase(choice, [Filler("", subject)], "finite", subject.plural, depth, fillers)
            clause = self.sentence_of([subject, inner.part], "acl:relcl")
            return phrase("SBAR", "acl:relcl", *([clause] if silent else [gap, clause]), head=-1)
        choice = self.verbs.verb(kind, depth)
        gap = phrase("WHNP", choice.subject_relation, word(*pronoun, choice.subject_relation))
        fillers = [Filler("", antecedent), Filler("R-", gap)]
        inner = self.verb_phrase(choice, fillers, "finite", antecedent.plural, depth)
        return phrase("SBAR", "acl:relcl", gap, phrase("S", "acl:relcl", inner.part), head=-1)

    def verb_phrase(
        self,
        choice: VerbAndVoice,
        subject: Sequence[Filler],
        form: Form,
        plural: bool,
        depth: int,
        gap: Sequence[Filler] = (),
    ) -> VerbPhrase:
        """A verb with its auxiliaries, complements and adjuncts; `gap`: what fills an absent object."""
        auxiliaries, main = verb_forms(self.rng, choice, form, plural)
        predication = Predication(main, choice.verb.sense, [])
        self.predications.append(predication)
        add = predication.arguments.append
        for filler in subject:
            add((filler.prefix + choice.subject_role, filler.part))
        for filler in gap:
            add((filler.prefix + "ARG1", filler.part))
        before: list[Constituent] = []
        if self.rng.random() < 0.1:
            often = self.rng.choice(FREQUENCIES)
            before.append(phrase("ADVP", "advmod", word(often, "RB", "advmod")))
            add(("ARGM-NEG" if often == "never" else "ARGM-TMP", before[0]))
        after = self._complements(choice, predication, subject, depth, bool(gap))
        if not any(part.label in ("S", "SBAR") for sibling in after for part in sibling.walk()):
            # An adjunct after a clause could belong to either verb.
            after += self._adjuncts(predication, depth)
        part = phrase("VP", "root", *before, main, *after, head=len(before))
        fronted: tuple[Constituent, ...] = ()
        for number in reversed(range(len(auxiliaries))):
            auxiliary = auxiliaries[number]
            if auxiliary.label == "MD":
                add(("ARGM-MOD", auxiliary))
            elif auxiliary.label != "TO":
                lemma = {"h": "have.01", "d": "do.01"}.get(auxiliary.word[0], "be.03")
                self.predications.append(Predication(auxiliary, lemma, []))
            negated = (
                number == 0 and form == "finite" and (auxiliary.word == "did" or self.rng.random() < 0.2)
            )
            negation = [word(self.rng.choice(("not", "n't")), "RB", "advmod", "PART")] if negated else []
            for not_ in negation:
                add(("ARGM-NEG", not_))
            if number == 0 and form == "question":
                fronted = (auxiliary,)
            else:
                part = phrase("VP", "root", auxiliary, *negation, part, head=-1)
        return VerbPhrase(part, predication, fronted)

    def _complements(
        self, choice: VerbAndVoice, predication: Predication, subject: Sequence[Filler], depth: int, gap: bool
    ) -> list[Constituent]:
        verb, rng, add = choice.verb, self.rng, predication.arguments.append
        pattern = verb.pattern
        if pattern in ("agent", "theme"):
            return []
        particle = (
            [phrase("PRT", "compound:prt", word("up", "RP", "compound:prt"))] if pattern == "up" else []
        )
        if choice.passive:
            after = list(particle)
            if pattern == "give":
                after.append(self.nominals.prepositional("to", self._plain("person", "obl")))
                add(("ARG2", after[-1]))
            if rng.random() < 0.5:
                agent = self.nominals.prepositional(
                    "by", self._plain(rng.choice(sorted(verb.subjects)), "obl:agent")
                )
                after.append(agent)
                add(("ARG0", agent))
            return after
        if pattern in ("trans", "up"):
            if gap:
                return particle
            after = self._object(verb, predication, depth)
            return after[:1] + particle + after[1:] if rng.random() < 0.5 else particle + after
        if pattern == "give":
            thing, _ = self.nominals.common("thing", "obj")
            if rng.random() < 0.5:
                recipient = self._plain("person", "iobj")
                after = [recipient, thing]
            else:
                recipient = self.nominals.prepositional("to", self._plain("person", "obl"))
                after = [thing, recipient]
            add(("ARG1", thing))
            add(("ARG2", recipient))
            return after
        if pattern == "claim":
            parts, _ = self.clause(depth - 1)
            that = [word("that", "IN", "mark", "SCONJ")] if rng.random() < 0.6 else []
            claim = phrase("SBAR", "ccomp", *that, self.sentence_of(parts, "ccomp"), head=-1)
            add(("ARG1", claim))
            return [claim]
        # Control: the verb decides who does what is wanted, urged or vowed.
        person = (
            [self._plain("person", "iobj" if pattern == "vow" else "obj")]
            if pattern in ("urge", "vow")
            else []
        )
        controller = [Filler("", person[0])] if pattern == "urge" else [f for f in subject if f.prefix == ""]
        inner = self.verb_phrase(self.verbs.active("person"), controller, "infinitive", False, depth - 1)
        action = phrase("S", "xcomp", inner.part)
        roles = {"want": ("ARG1",), "urge": ("ARG1", "ARG2"), "vow": ("ARG2", "ARG1")}[pattern]
        for role, part in zip(roles, [*person, action], strict=True):
            add((role, part))
        return [*person, action]

    def _object(self, verb: Verb, predication: Predication, depth: int) -> list[Constituent]:
        """An object, perhaps before a prepositional phrase, whose attachment depends on the words alone."""
        rng, add = self.rng, predication.arguments.append
        kind: Kind = rng.choice(sorted(verb.objects))
        draw = rng.random()
        if draw < 0.4:
            complement, after = self.noun_phrase(kind, "obj", depth), []
        else:
            base, noun = self.nominals.common(kind, "obj")
            if draw < 0.75:
                tool = rng.choice([noun for noun in NOUNS if noun.kind == "thing"])
                inner, _ = self.nominals.common("thing", "obl", tool)
                to_verb, role = tool.group == verb.group, "ARGM-MNR"
                modifier = self.nominals.prepositional("with", inner)
            else:
                to_verb, role = not noun.fixed, "ARGM-LOC"
                modifier = self.nominals.prepositional(
                    rng.choice(("near", "in")), self._plain("place", "obl")
                )
            if to_verb:
                add((role, modifier))
                complement, after = base, [modifier]
            else:
                modifier.relation = "nmod"
                complement, after = phrase("NP", "obj", base, modifier, plural=base.plural), []
        add(("ARG1", complement))
        return [complement, *after]

    def _adjuncts(self, predication: Predication, depth: int) -> list[Constituent]:
        rng, adjuncts = self.rng, []
        if rng.random() < 0.12:
            adjuncts.append(("ARGM-MNR", phrase("ADVP", "advmod", word(rng.choice(MANNERS), "RB", "advmod"))))
        if rng.random() < 0.1:
            # 'by' before a name could also mark the agent of a passive.
            place = self._plain("place", "obl")
            adjuncts.append(
                ("ARGM-LOC", self.nominals.prepositional("outside" if place.entity else "by", place))
            )
        if rng.random() < 0.12:
            adjuncts.append(("ARGM-TMP", self.nominals.time()))
        if depth > 1 and rng.random() < 0.15:
            form, role = rng.choice(_SUBORDINATORS)
            parts, _ = self.clause(0)
            mark = word(form, "IN", "mark", "SCONJ")
            adjuncts.append((role, phrase("SBAR", "advcl", mark, self.sentence_of(parts, "advcl"), head=-1)))
        predication.arguments.extend(adjuncts)
        return [part for _, part in adjuncts]

    def _noun(self, kind: Kind, relation: str) -> Constituent:
        return self.nominals.any(kind, relation, pronouns=False)[0]

    def _plain(self, kind: Kind, relation: str) -> Constituent:
        return self.nominals.any(kind, relation)[0]
