"""A lemma per word: scripts that edit the form, learned as labels of words.

A word's vector hardly says how the word is spelt: by scripts alone, `killed` becomes `kille`, as `agreed`
becomes `agree`.

A script is `CASING;PREFIX¦SUFFIX`. The root is the longest substring that the form and the lemma, both in
lower case, have in common; it is kept. PREFIX and SUFFIX are the shortest edits of what is before and after
it: `.` keeps a character of the form, `-` drops one, and `+c` adds c. CASING says from which character on the
lemma is in upper case (`U0`) or in lower case (`L1`), counted from the end (`L-1`) in its second half.
`studies` and `study` have `L0;¦---+y`. A form without a character in common with its lemma has the script
`=LEMMA`.

M. Straka: UDPipe 2.0 Prototype at CoNLL 2018 UD Shared Task. CoNLL 2018, pages 197 to 207.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from mtl.tasks.sentence import LEMMAS, Sentence
from mtl.tasks.task import Dropout, Labels, Size, Task, annotated_layer

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder, Item
    from mtl.tasks.metrics import TaskMetric


@dataclass(frozen=True)
class Lemmas(Task):
    """A lemma per word."""

    kind = "lemmas"
    annotation = "a label per word"
    layers = (LEMMAS,)
    layer = LEMMAS
    item = "lemma"
    in_rounded_shapes = True
    score = "accuracy"
    scores = ("accuracy",)

    dropout: Dropout = field(default=0.33, kw_only=True)
    """Share of the word vectors' features dropped in training."""
    min_count: Size = field(default=2, kw_only=True)
    """How often a script must occur in training to be learned."""

    def items(self, sentence: Sentence) -> Mapping[str, int]:
        return {"lemmas": len(sentence)}

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        found: Counter[str] = Counter()
        lexicon: dict[str, dict[str, str]] = {}
        for sentence in sentences:
            lemmas = sentence.layer(self.layer)
            if lemmas is None:
                continue
            for form, lemma, edits in zip(
                sentence.words, lemmas, scripts_of(sentence.words, lemmas), strict=True
            ):
                if edits is not None:
                    found[edits] += 1
                    lexicon.setdefault(form, {})[lemma] = edits
        frequent = {SAME} | {edits for edits, count in found.items() if count >= self.min_count}
        learned = {
            form: [lemma for lemma, edits in of_form.items() if edits in frequent]
            for form, of_form in lexicon.items()
        }
        return LemmaLabels(Labels(sorted(frequent)), learned).joined()

    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        from mtl.tasks.decoders.classifier import label_targets

        scripts = scripts_of(sentence.words, annotated_layer(sentence, self.layer))
        return label_targets([edits or "" for edits in scripts], labels)

    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
        from mtl.tasks.decoders.classifier import LemmaDecoder

        return LemmaDecoder(hidden, labels, self.dropout)

    def metric(self) -> TaskMetric:
        from mtl.tasks.metrics import LemmaAccuracy

        return LemmaAccuracy(self.layer)

    def offered(
        self, sentence: Sentence, items: tuple[Item, ...], k: int, labels: Labels
    ) -> tuple[Item, ...]:
        """The lemmas that scripts make of the forms, with their shares of the scripts' probability.

        Scripts that do not apply to a form are left out; for a form that occurs in training, so are scripts
        that make other lemmas than there. The probabilities of scripts that make the same lemma are added.
        """
        from mtl.tasks.decoders.decoder import Alternative

        made_of, lexicon = [], split_lemma_labels(labels).lexicon
        for word, item in zip(sentence.words, items, strict=True):
            offers = [(made(str(edits), word), chance) for edits, chance in item.best]
            known = lexicon.get(word, ())
            if any(lemma in known for lemma, _ in offers[:RANKED]):
                offers = [offer for offer in offers if offer[0] in known]
            lemmas: dict[str, float] = {}
            for lemma, chance in offers:
                if lemma is not None:
                    lemmas[lemma] = lemmas.get(lemma, 0.0) + chance
            whole = sum(lemmas.values())
            ranked = sorted(lemmas.items(), key=lambda lemma: -lemma[1])[:k]
            best = tuple([Alternative(lemma, chance / whole) for lemma, chance in ranked])
            made_of.append(item._replace(best=best))
        return tuple(made_of)

    def annotate(self, sentence: Sentence, annotation: RankedScripts) -> Sentence:
        return sentence.with_layers({self.layer: annotation.lemmas(sentence.words)})


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
def split_lemma_labels(labels: Labels) -> LemmaLabels:
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


SAME = "L0;¦"
"""The script of a lemma that is the form in lower case."""
UNSPECIFIED = "_"
"""Stands for "no lemma", unless the word itself is this character."""
_WHOLE = "="
_KEEP, _DROP, _ADD = ".", "-", "+"
_EDIT = re.compile(r"\+.|[.-]", re.DOTALL)
_SCRIPT = re.compile(r"([^;]*);((?:\+.|[.-])*)¦(.*)", re.DOTALL)


class _Edits(NamedTuple):
    """A script after parsing."""

    casing: tuple[tuple[bool, int], ...]
    """From which character on the lemma is in upper case, or not."""
    prefix: str
    suffix: str
    before: int
    """Characters of the form before the root."""
    after: int


@lru_cache(maxsize=100_000)
def script(form: str, lemma: str) -> str:
    """The script that turns the form into the lemma: `made(script(form, lemma), form) == lemma`."""
    low, target = form.lower(), lemma.lower()
    match = SequenceMatcher(None, low, target, autojunk=False).find_longest_match()
    if match.size:
        prefix = _shortest(low[: match.a], target[: match.b])
        suffix = _shortest(low[match.a + match.size :], target[match.b + match.size :])
        edits = f"{_casing(lemma)};{prefix}¦{suffix}"
        if made(edits, form) == lemma:
            return edits
    return f"{_WHOLE}{lemma}"


def made(edits: str, form: str) -> str | None:
    """The lemma that a script turns a form into; `None` if the form is too short for the script."""
    if edits.startswith(_WHOLE):
        return edits[1:]
    low = form.lower()
    if len(low) < shortest_form(edits):
        return None
    casing, prefix, suffix, before, after = _read(edits)
    root = low[before : len(low) - after]
    lemma = _edited(prefix, low[:before]) + root + _edited(suffix, low[len(low) - after :])
    return _cased(lemma, casing)


def shortest_form(edits: str) -> int:
    """How many characters, in lower case, a form must have for a script to apply."""
    if edits.startswith(_WHOLE):
        return 1
    read = _read(edits)
    return read.before + 1 + read.after


def scripts_of(words: Sequence[str], lemmas: Sequence[str] | None) -> list[str | None]:
    """The script of each word's lemma; `None` for a word without one. Empty if `lemmas` is `None`."""
    if lemmas is None:
        return []
    return [
        None if lemma == UNSPECIFIED != word else script(word, lemma)
        for word, lemma in zip(words, lemmas, strict=True)
    ]


@lru_cache(maxsize=10_000)
def _read(edits: str) -> _Edits:
    match = _SCRIPT.fullmatch(edits)
    assert match is not None
    casing, prefix, suffix = match.groups()
    places = tuple((part[0] == "U", int(part[1:])) for part in casing.split(","))
    return _Edits(places, prefix, suffix, _taken(prefix), _taken(suffix))


def _taken(edits: str) -> int:
    """How many characters of the form the edits keep or drop."""
    return sum(not operation.startswith(_ADD) for operation in _EDIT.findall(edits))


def _edited(edits: str, part: str) -> str:
    characters = iter(part)
    made = []
    for operation in _EDIT.findall(edits):
        if operation.startswith(_ADD):
            made.append(operation[1])
        elif (character := next(characters)) and operation == _KEEP:
            made.append(character)
    return "".join(made)


def _shortest(part: str, target: str) -> str:
    """The shortest edits that make the target; among equally short ones, those that drop before they add."""
    costs = [[0] * (len(target) + 1) for _ in range(len(part) + 1)]
    for i in range(len(part), -1, -1):
        for j in range(len(target), -1, -1):
            if i < len(part) and j < len(target) and part[i] == target[j]:
                costs[i][j] = costs[i + 1][j + 1]
            elif i < len(part) or j < len(target):
                dropped = costs[i + 1][j] if i < len(part) else len(part) + len(target)
                added = costs[i][j + 1] if j < len(target) else len(part) + len(target)
                costs[i][j] = 1 + min(dropped, added)
    edits, i, j = [], 0, 0
    while i < len(part) or j < len(target):
        if i < len(part) and j < len(target) and part[i] == target[j]:
            edits.append(_KEEP)
            i, j = i + 1, j + 1
        elif i < len(part) and costs[i][j] == 1 + costs[i + 1][j]:
            edits.append(_DROP)
            i += 1
        else:
            edits.append(_ADD + target[j])
            j += 1
    return "".join(edits)


def _casing(lemma: str) -> str:
    upper = [character != character.lower() for character in lemma]
    changes = [place for place in range(len(lemma)) if place == 0 or upper[place] != upper[place - 1]]
    return ",".join(
        f"{'U' if upper[place] else 'L'}{place if 2 * place <= len(lemma) else place - len(lemma)}"
        for place in changes
    )


def _cased(lemma: str, casing: Iterable[tuple[bool, int]]) -> str:
    for upper, place in casing:
        start = place if place >= 0 else max(0, len(lemma) + place)
        lemma = lemma[:start] + (lemma[start:].upper() if upper else lemma[start:].lower())
    return lemma
