"""Copular clauses of the generated corpus: 'the dog is not old'."""

from __future__ import annotations

import random

from mtl.corpora.toy.derivation import Part, Predication, phrase, word

_QUALITIES = ("old", "small", "famous", "present", "open")


def copular(rng: random.Random, subject: Part) -> tuple[Part, Predication]:
    """The verb phrase of a copular clause on `subject`, and what it predicates."""
    form, tag = ("are", "VBP") if subject.plural else rng.choice((("is", "VBZ"), ("was", "VBD")))
    be = word(form, tag, "cop", "AUX")
    negation = [word("not", "RB", "advmod", "PART")] if rng.random() < 0.2 else []
    quality = phrase("ADJP", "root", word(rng.choice(_QUALITIES), "JJ", "root"))
    predication = Predication(be, "be.01", [("ARG1", subject), ("ARG2", quality)])
    predication.arguments += [("ARGM-NEG", part) for part in negation]
    return phrase("VP", "root", be, *negation, quality, head=-1), predication
