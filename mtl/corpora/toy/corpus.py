"""The generated corpus: sentences with all five layers, for demonstrations and tests without data."""

from __future__ import annotations

import random
from pathlib import Path

from mtl.config.schema import Split
from mtl.corpora.folder import refuse_existing, write_splits
from mtl.corpora.toy.grammar import (
    Clauses,
    Constituent,
    Filler,
    Nominals,
    Predication,
    annotate,
    phrase,
    word,
)
from mtl.corpora.toy.lexicon import known_names, new_names
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
