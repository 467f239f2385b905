"""The lemmas that each form has in training; a form that occurs there gets one of them.

A word's vector hardly says how the word is spelt: by scripts alone, `killed` becomes `kille`, as `agreed`
becomes `agree`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from mtl.tasks.lemma_scripts import made
from mtl.tasks.task import Labels

RANKED = 8
"""How many of a word's best scripts are tried for a lemma that its form has in training."""
_BETWEEN = "\t"


class LemmaLabels(NamedTuple):
    """What a decoder of lemmas knows."""

    scripts: Labels
    lexicon: Mapping[str, Collection[str]]
    """The lemmas of each form."""

    def joined(self) -> Labels:
        """One inventory for both: the scripts, then pairs of form and lemma with a mark in between."""
        pairs = [
            f"{form}{_BETWEEN}{lemma}"
            for form, lemmas in sorted(self.lexicon.items())
            for lemma in sorted(lemmas)
        ]
        return Labels([*self.scripts.names, *pairs])


@lru_cache(maxsize=16)
def split_labels(labels: Labels) -> LemmaLabels:
    """Scripts and lexicon in a joint inventory (`LemmaLabels.joined`), or in one of scripts alone."""
    lexicon: dict[str, list[str]] = {}
    pairs = [name.split(_BETWEEN) for name in labels.names if _BETWEEN in name]
    for form, lemma in pairs:
        lexicon.setdefault(form, []).append(lemma)
    return LemmaLabels(Labels(labels.names[: len(labels) - len(pairs)]), lexicon)


class RankedScripts(NamedTuple):
    """What a decoder predicts for the words of a sentence."""

    scripts: tuple[tuple[str, ...], ...]
    """The best scripts of each word, the best first."""
    lexicon: Mapping[str, Collection[str]]

    def lemmas(self, words: Sequence[str]) -> tuple[str, ...]:
        """The lemmas of these words."""
        return tuple(
            lemma_of(word, scripts, self.lexicon.get(word, ()))
            for word, scripts in zip(words, self.scripts, strict=True)
        )


def lemma_of(form: str, scripts: Sequence[str], known: Collection[str] = ()) -> str:
    """The first lemma that a script makes and that is known; else what the first script that applies makes.

    If no script applies, it is the form.
    """
    lemmas = [lemma for edits in scripts if (lemma := made(edits, form)) is not None]
    return next((lemma for lemma in lemmas if lemma in known), lemmas[0] if lemmas else form)
