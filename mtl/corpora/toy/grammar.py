"""The grammar of the generated corpus: words, derivations with their layers, noun phrases, verb forms."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product, zip_longest
from typing import Literal, NamedTuple

from mtl.config.schema import Split
from mtl.tasks.sentence import Arcs, Frame, Sentence, Span
from mtl.tasks.tree import Tree

Kind = Literal["person", "org", "thing", "place"]


@dataclass(frozen=True, slots=True)
class Noun:
    """A common noun; `group` and `fixed` decide where prepositional phrases near it attach."""

    singular: str
    plural: str
    kind: Kind
    group: int = 0
    """'with NOUN' modifies a verb of the same group; beside other verbs, it modifies their object."""
    fixed: bool = False
    """A following 'near PLACE' modifies this noun; otherwise it modifies the verb."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: its forms, its pattern (which arguments it takes) and the kinds of its subjects and objects."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str
    pattern: str
    group: int
    subjects: frozenset[Kind]
    objects: frozenset[Kind]

    @property
    def sense(self) -> str:
        return f"{self.base}.01"


_LETTERS: dict[str, Kind] = {"p": "person", "o": "org", "t": "thing", "l": "place"}

# singular plural kind group(with) fixed(near)
_NOUNS = """
man men p 0 - | woman women p 0 - | student students p 0 - | doctor doctors p 0 - | farmer farmers p 0 -
singer singers p 0 - | guard guards p 0 - | cook cooks p 0 - | judge judges p 0 -
neighbour neighbours p 0 -
company companies o 0 - | bank banks o 0 - | team teams o 0 - | agency agencies o 0 - | club clubs o 0 -
dog dogs t 0 - | boat boats t 1 - | shop shops t 0 f | wall walls t 1 f | tree trees t 0 f
house houses t 0 f | bridge bridges t 1 f | tower towers t 0 f
saw saws t 1 - | watch watches t 0 - | light lights t 1 - | paint paints t 0 - | drawing drawings t 1 -
telescope telescopes t 0 - | hammer hammers t 1 - | basket baskets t 0 - | rope ropes t 1 -
brush brushes t 0 -
lamp lamps t 1 - | garden gardens t 1 f | fence fences t 0 f | letter letters t 1 - | hat hats t 0 -
park parks l 0 - | city cities l 0 - | village villages l 0 - | station stations l 0 -
river rivers l 0 -
walk walks t 1 - | run runs t 0 - | help helps t 1 - | cut cuts t 0 - | study studies t 1 -
"""

# base third past participle gerund pattern group subjects objects
_VERBS = """
see sees saw seen seeing trans 0 p pt | watch watches watched watched watching trans 0 p pt
paint paints painted painted painting trans 0 p t | clean cleans cleaned cleaned cleaning trans 0 p t
follow follows followed followed following trans 0 p pt | break breaks broke broken breaking trans 0 p t
find finds found found finding trans 1 po pt | carry carries carried carried carrying trans 1 p t
draw draws drew drawn drawing trans 1 p pt | push pushes pushed pushed pushing trans 1 p pt
help helps helped helped helping trans 1 po po | cut cuts cut cut cutting trans 1 p t
study studies studied studied studying trans 1 p t | light lights lit lit lighting trans 0 p t
acquire acquires acquired acquired acquiring trans 0 o o | sue sues sued sued suing trans 1 o o
hire hires hired hired hiring trans 1 o p | judge judges judged judged judging trans 0 p p
guard guards guarded guarded guarding trans 1 p t | cook cooks cooked cooked cooking agent 0 p -
sleep sleeps slept slept sleeping agent 0 p - | laugh laughs laughed laughed laughing agent 0 p -
run runs ran run running agent 1 p - | walk walks walked walked walking agent 1 p -
wait waits waited waited waiting agent 0 p - | dance dances danced danced dancing agent 1 p -
vanish vanishes vanished vanished vanishing theme 0 pt - | fall falls fell fallen falling theme 1 pt -
collapse collapses collapsed collapsed collapsing theme 0 ot -
arrive arrives arrived arrived arriving theme 1 p -
shrink shrinks shrank shrunk shrinking theme 0 ot - | grow grows grew grown growing theme 1 ot -
give gives gave given giving give 0 p p | send sends sent sent sending give 1 po p
show shows showed shown showing give 1 p p | lend lends lent lent lending give 0 po p
say says said said saying claim 0 po - | think thinks thought thought thinking claim 0 p -
believe believes believed believed believing claim 1 p -
announce announces announced announced announcing claim 0 o -
know knows knew known knowing claim 1 p - | want wants wanted wanted wanting want 0 p -
hope hopes hoped hoped hoping want 1 p - | plan plans planned planned planning want 0 p -
persuade persuades persuaded persuaded persuading urge 0 p p
order orders ordered ordered ordering urge 1 p p
ask asks asked asked asking urge 0 p p | promise promises promised promised promising vow 0 p p
pick picks picked picked picking up 1 p t | hold holds held held holding up 0 p t
put puts put put putting up 1 p t
"""

ADJECTIVES = (
    "old", "small", "red", "strange", "heavy", "quiet", "famous", "present", "light", "open", "clean",
    "round", "wooden",
)  # fmt: skip
MANNERS = ("quickly", "slowly", "quietly", "carefully", "badly", "well")
FREQUENCIES = ("often", "rarely", "never", "always")
DAYS = ("Monday", "Tuesday", "Friday", "Sunday")
_AMBIGUOUS = (
    "Jordan", "Lincoln", "Houston", "Victoria", "Sydney", "Florence", "Chelsea", "Austin", "Carolina",
    "Madison",
)  # fmt: skip


def _rows(text: str) -> list[list[str]]:
    return [row.split() for line in text.strip().splitlines() for row in line.split("|")]


def _kinds(letters: str) -> frozenset[Kind]:
    return frozenset(_LETTERS[letter] for letter in letters if letter != "-")


NOUNS = tuple(
    Noun(singular, plural, _LETTERS[kind], int(group), fixed == "f")
    for singular, plural, kind, group, fixed in _rows(_NOUNS)
)
VERBS = tuple(
    Verb(base, third, past, participle, gerund, pattern, int(group), _kinds(subjects), _kinds(objects))
    for base, third, past, participle, gerund, pattern, group, subjects, objects in _rows(_VERBS)
)


@dataclass(frozen=True, slots=True)
class Names:
    """The proper names of a split; `person` has first names only."""

    person: tuple[str, ...]
    surname: tuple[str, ...]
    org: tuple[str, ...]
    place: tuple[str, ...]


def known_names() -> Names:
    """The names that every split uses; some are names of both people and places."""
    person, surname, org, place = (_invented(kind, 0, 40) for kind in range(4))
    return Names(person + _AMBIGUOUS, surname + _AMBIGUOUS, org, place + _AMBIGUOUS)


def new_names(split: Split) -> Names:
    """The names that only this split uses; `train` has none, and gets the known names."""
    if split == "train":
        return known_names()
    start = {"dev": 40, "test": 80}[split]
    return Names(*(_invented(kind, start, start + 40) for kind in range(4)))


def _invented(kind: int, start: int, end: int) -> tuple[str, ...]:
    """Names whose form does not reveal their kind: one shuffled list, dealt out in turn."""
    forms = [
        "".join(parts)
        for parts in product(("Ba", "Do", "Ke", "Li", "Mo", "Ra", "Su", "Ve"), _SYLLABLES, _ENDS)
    ]
    random.Random(0).shuffle(forms)
    return tuple(forms[kind::4][start:end])


_SYLLABLES = ("l", "nd", "rm", "st", "v", "tt", "gr", "b")
_ENDS = ("a", "en", "is", "on", "er", "o", "ia", "ow", "ett", "ick")


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
