"""The generated corpus: sentences with all five layers, for demonstrations and tests without data.

Sentences are patterns of clauses, which the words and phrases of the grammar fill.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mtl.config.schema import Split
from mtl.corpora.folder import refuse_existing, write_splits
from mtl.corpora.toy.grammar import (
    FREQUENCIES,
    MANNERS,
    NOUNS,
    Constituent,
    Form,
    Kind,
    Nominals,
    Predication,
    Verb,
    VerbAndVoice,
    Verbs,
    annotate,
    copular,
    known_names,
    new_names,
    phrase,
    verb_forms,
    word,
)
from mtl.errors import InputError
from mtl.tasks.sentence import Sentence

_NOVELTY = {"train": 0.0, "dev": 0.4, "test": 0.4}
"""The share of proper names in a split that occur in no other split."""


def toy_corpus(sentences: int, seed: int, split: Split = "train") -> list[Sentence]:
    """`sentences` sentences of a split; the same arguments always give the same sentences."""
    rng = random.Random(f"{split} {seed}")
    nominals = Nominals(rng, known_names(), new_names(split), _NOVELTY[split])
    return [_sentence(rng, nominals, f"toy-{split}-{seed}-{number}") for number in range(sentences)]


def write_toy(
    out: Path, train: int = 4000, dev: int = 500, test: int = 500, seed: int = 0, overwrite: bool = False
) -> list[Path]:
    """Write the three splits as JSON lines into the folder `out` and return their paths."""
    sizes: dict[Split, int] = {"train": train, "dev": dev, "test": test}
    for split, size in sizes.items():
        if size < 1:
            raise InputError(f"{split}={size}: a split has at least one sentence")
    refuse_existing(out, overwrite)
    return write_splits(out, {split: toy_corpus(size, seed, split) for split, size in sizes.items()})


def _sentence(rng: random.Random, nominals: Nominals, name: str) -> Sentence:
    clauses = Clauses(rng, nominals)
    draw = rng.choices(list(_PATTERNS), list(_PATTERNS.values()))[0]
    return annotate(draw(clauses), clauses.predications, name)


def _full(label: str, parts: list[Constituent], mark: str) -> Constituent:
    """A root over `parts`, headed by the last of them, and the final punctuation mark."""
    return phrase(label, "root", *parts, word(mark, ".", "punct"), head=-2)


def _conjunction(form: str) -> Constituent:
    part = word(form, "CC", "cc")
    part.to_next = True
    return part


def _statement(clauses: Clauses) -> Constituent:
    return _full("S", clauses.clause(2, front=True)[0], ".")


def _two(clauses: Clauses) -> Constituent:
    """Two coordinated clauses."""
    first = clauses.sentence_of(clauses.clause(1, front=True)[0], "root")
    second = clauses.sentence_of(clauses.clause(1)[0], "conj")
    conjunction = _conjunction(clauses.rng.choice(("and", "but")))
    return phrase("S", "root", first, conjunction, second, word(".", ".", "punct"))


def _shared(clauses: Clauses) -> Constituent:
    """Two verb phrases that share their subject."""
    kind = clauses.verbs.kind()
    choices = [clauses.verbs.verb(kind, 1), clauses.verbs.verb(kind, 0)]
    subject = clauses.noun_phrase(kind, choices[0].subject_relation, 1)
    first, second = (
        clauses.verb_phrase(choice, [Filler("", subject)], "finite", subject.plural, depth).part
        for choice, depth in zip(choices, (1, 0), strict=True)
    )
    second.relation = "conj"
    both = phrase("VP", "root", first, _conjunction(clauses.rng.choice(("and", "but"))), second)
    return _full("S", [subject, both], ".")


def _quoted(clauses: Clauses) -> Constituent:
    """A claim on both sides of its speaker, 'The dog , Mary said , slept': an argument in two parts."""
    parts, verb_phrase = clauses.clause(1)
    subject, rest = parts
    speaker = clauses.noun_phrase("person", "nsubj", 0)
    said = word("said", "VBD", "parataxis")
    clauses.predications.append(
        Predication(said, "say.01", [("ARG0", speaker), ("ARG1", subject), ("C-ARG1", verb_phrase.part)])
    )
    inner = clauses.sentence_of([speaker, phrase("VP", "parataxis", said)], "parataxis")
    commas = word(",", ",", "punct"), word(",", ",", "punct")
    return _full("S", [subject, phrase("PRN", "parataxis", commas[0], inner, commas[1], head=1), rest], ".")


def _yes_no(clauses: Clauses) -> Constituent:
    """A question that begins with its auxiliary."""
    kind = clauses.verbs.kind()
    choice = clauses.verbs.verb(kind, 1)
    subject = clauses.noun_phrase(kind, choice.subject_relation, 0)
    inner = clauses.verb_phrase(choice, [Filler("", subject)], "question", subject.plural, 1)
    return _full("SQ", [*inner.fronted, subject, inner.part], "?")


def _who(clauses: Clauses) -> Constituent:
    """A question about the subject or the object."""
    if clauses.rng.random() < 0.5:
        choice = clauses.verbs.verb("person", 1)
        who = phrase("WHNP", choice.subject_relation, word("who", "WP", choice.subject_relation))
        inner = clauses.verb_phrase(choice, [Filler("", who)], "finite", False, 1)
        return _full("SBARQ", [who, phrase("SQ", "root", inner.part)], "?")
    what = phrase("WHNP", "obj", word("what", "WP", "obj"))
    choice = clauses.verbs.taking("thing")
    subject = clauses.noun_phrase("person", "nsubj", 0)
    inner = clauses.verb_phrase(
        choice, [Filler("", subject)], "question", subject.plural, 0, [Filler("", what)]
    )
    return _full("SBARQ", [what, phrase("SQ", "root", *inner.fronted, subject, inner.part, head=-1)], "?")


def _command(clauses: Clauses) -> Constituent:
    """An imperative: a predicate without a subject."""
    inner = clauses.verb_phrase(clauses.verbs.active("person"), [], "imperative", False, 1)
    return _full("S", [inner.part], ".")


def _fragment(clauses: Clauses) -> Constituent:
    """A noun phrase alone, without a predicate or with one in a relative clause."""
    kind = clauses.verbs.kind()
    named, noun = clauses.nominals.any(kind, "root", pronouns=False)
    parts = [named] if noun is None else [named, clauses.relative(named, kind, 0)]
    return phrase("NP", "root", *parts, word(".", ".", "punct"))


_PATTERNS = {
    _statement: 50, _two: 10, _shared: 8, _quoted: 10, _yes_no: 6, _who: 6, _command: 5, _fragment: 5
}  # fmt: skip
"""The kinds of sentences, with their relative frequencies."""


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
