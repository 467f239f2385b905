"""The lemmas that training has for each form. A form that is in it gets one of them.

A word's vector hardly says how the word is spelt: by its script alone, `killed` becomes `kille`, as `agreed`
becomes `agree`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from mtl.tasks.lemma_scripts import made
from mtl.tasks.task import Labels

RANKED = 8
"""Scripts of a word, the best by their scores, that may make a lemma which its form has in training."""
_BETWEEN = "\t"


class LemmaLabels(NamedTuple):
    """What a decoder of lemmas knows."""

    scripts: Labels
    lexicon: Mapping[str, Collection[str]]
    """By form its lemmas."""

    def joined(self) -> Labels:
        """One inventory for both: the scripts, then forms with their lemmas, which have a mark in between."""
        pairs = [
            f"{form}{_BETWEEN}{lemma}"
            for form, lemmas in sorted(self.lexicon.items())
            for lemma in sorted(lemmas)
        ]
        return Labels([*self.scripts.names, *pairs])


@lru_cache(maxsize=16)
def split_labels(labels: Labels) -> LemmaLabels:
    """Scripts and lexicon of one inventory that `LemmaLabels.joined` made, or of scripts alone."""
    lexicon: dict[str, list[str]] = {}
    pairs = [name.split(_BETWEEN) for name in labels.names if _BETWEEN in name]
    for form, lemma in pairs:
        lexicon.setdefault(form, []).append(lemma)
    return LemmaLabels(Labels(labels.names[: len(labels) - len(pairs)]), lexicon)


class RankedScripts(NamedTuple):
    """What a decoder says of the words of a sentence."""

    scripts: tuple[tuple[str, ...], ...]
    """Per word its best scripts, the best first."""
    lexicon: Mapping[str, Collection[str]]

    def lemmas(self, words: Sequence[str]) -> tuple[str, ...]:
        """The lemmas of these words."""
        return tuple(
            lemma_of(word, scripts, self.lexicon.get(word, ()))
            for word, scripts in zip(words, self.scripts, strict=True)
        )


def lemma_of(form: str, scripts: Sequence[str], known: Collection[str] = ()) -> str:
    """The first of the form's known lemmas that scripts make, else what the first that applies makes.

    Without any script that applies it is the form.
    """
    lemmas = [lemma for edits in scripts if (lemma := made(edits, form)) is not None]
    return next((lemma for lemma in lemmas if lemma in known), lemmas[0] if lemmas else form)
