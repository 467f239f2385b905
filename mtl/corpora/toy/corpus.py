"""The generated corpus: sentences with all five layers, for demonstrations and tests without any data."""

from __future__ import annotations

import random
from pathlib import Path

from mtl.corpora.splits import refuse_existing, write_splits
from mtl.corpora.toy.clauses import Clauses, Filler
from mtl.corpora.toy.derivation import Part, Predication, annotate, phrase, word
from mtl.corpora.toy.lexicon import Split, known_names, new_names
from mtl.corpora.toy.nominals import Nominals
from mtl.errors import InputError
from mtl.tasks.sentence import Sentence

_NOVELTY = {"train": 0.0, "dev": 0.4, "test": 0.4}
"""The share of proper names in a split that no other split has."""
_PATTERNS = {
    "statement": 50,
    "two": 10,
    "shared": 8,
    "quoted": 10,
    "yes_no": 6,
    "who": 6,
    "command": 5,
    "fragment": 5,
}


def toy_corpus(sentences: int, seed: int, split: Split = "train") -> list[Sentence]:
    """`sentences` sentences of one split; the same arguments always give the same ones."""
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
    pattern = rng.choices(list(_PATTERNS), list(_PATTERNS.values()))[0]
    draw = {
        "statement": lambda: _full("S", clauses.clause(2, front=True)[0], "."),
        "two": lambda: _two(rng, clauses),
        "shared": lambda: _shared(rng, clauses),
        "quoted": lambda: _quoted(clauses),
        "yes_no": lambda: _yes_no(clauses),
        "who": lambda: _who(rng, clauses),
        "command": lambda: _command(clauses),
        "fragment": lambda: _fragment(clauses),
    }
    return annotate(draw[pattern](), clauses.predications, name)


def _full(label: str, parts: list[Part], mark: str) -> Part:
    """A root over `parts`, headed by the last of them, and the sentence's final mark."""
    return phrase(label, "root", *parts, word(mark, ".", "punct"), head=-2)


def _conjunction(form: str) -> Part:
    part = word(form, "CC", "cc")
    part.to_next = True
    return part


def _two(rng: random.Random, clauses: Clauses) -> Part:
    """Two coordinated clauses."""
    first = clauses.sentence_of(clauses.clause(1, front=True)[0], "root")
    second = clauses.sentence_of(clauses.clause(1)[0], "conj")
    conjunction = _conjunction(rng.choice(("and", "but")))
    return phrase("S", "root", first, conjunction, second, word(".", ".", "punct"))


def _shared(rng: random.Random, clauses: Clauses) -> Part:
    """Two verb phrases that share their subject."""
    kind = clauses.verbs.kind()
    choices = [clauses.verbs.verb(kind, 1), clauses.verbs.verb(kind, 0)]
    subject = clauses.noun_phrase(kind, choices[0].subject_relation, 1)
    first, second = (
        clauses.verb_phrase(choice, [Filler("", subject)], "finite", subject.plural, depth).part
        for choice, depth in zip(choices, (1, 0), strict=True)
    )
    second.relation = "conj"
    both = phrase("VP", "root", first, _conjunction(rng.choice(("and", "but"))), second)
    return _full("S", [subject, both], ".")


def _quoted(clauses: Clauses) -> Part:
    """A claim around its speaker, 'The dog , Mary said , slept': an argument in two pieces."""
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


def _yes_no(clauses: Clauses) -> Part:
    """A question with its auxiliary in front."""
    kind = clauses.verbs.kind()
    choice = clauses.verbs.verb(kind, 1)
    subject = clauses.noun_phrase(kind, choice.subject_relation, 0)
    inner = clauses.verb_phrase(choice, [Filler("", subject)], "question", subject.plural, 1)
    fronted = [inner.fronted] if inner.fronted is not None else []
    return _full("SQ", [*fronted, subject, inner.part], "?")


def _who(rng: random.Random, clauses: Clauses) -> Part:
    """A question about the subject or the object."""
    if rng.random() < 0.5:
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
    fronted = [inner.fronted] if inner.fronted is not None else []
    return _full("SBARQ", [what, phrase("SQ", "root", *fronted, subject, inner.part, head=-1)], "?")


def _command(clauses: Clauses) -> Part:
    """An imperative: a predicate without a subject."""
    inner = clauses.verb_phrase(clauses.verbs.active("person"), [], "imperative", False, 1)
    return _full("S", [inner.part], ".")


def _fragment(clauses: Clauses) -> Part:
    """A noun phrase alone, which has no predicate, or one in a relative clause."""
    kind = clauses.verbs.kind()
    named, noun = clauses.nominals.any(kind, "root", pronouns=False)
    parts = [named] if noun is None else [named, clauses.relative(named, kind, 0)]
    return phrase("NP", "root", *parts, word(".", ".", "punct"))
