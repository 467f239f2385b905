"""Joining sentences of several sources that have the same words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from unicodedata import normalize

from mtl.corpora.formats.own_layers import is_spelled
from mtl.corpora.formats.treebank import plain_word, with_words
from mtl.tasks.sentence import Sentence
from mtl.tasks.tree import Tree

MASKS = frozenset({"_", "[WORD]", "[MASK]", "[UNK]", "<mask>", "<unk>"})
"""What replaces the words in files whose text was removed."""
BY_ORDER = "sentence joined by its order among those with the same words, whose number differs by source"
MASKED = "sentence not joined with others, because some of its words are masked"
_Text = tuple[tuple[str, ...], int | None]


class _Partner(NamedTuple):
    """The index of a sentence that another one is joined with, and notes on how it was found."""

    place: int
    notes: tuple[str, ...] = ()


def merge(parts: Sequence[Sequence[Sentence]]) -> list[Sentence]:
    """The sentences and pairs of several sources; those with the same words become one with all layers.

    Words are the same if they differ at most in Unicode's normal form and a treebank's escapes. The words of
    the first source are kept, and the first text that these words spell. If several sentences have the same
    words, those with the same id are joined first and the rest in order; the latter have a note if the
    sources have different numbers of them. Masked sentences are not joined.
    """
    if len(parts) == 1:
        return list(parts[0])
    merged: list[Sentence] = []
    places: dict[_Text, list[int]] = defaultdict(list)
    for part in parts:
        partners = _partners(part, places, merged)
        for number, sentence in enumerate(part):
            partner = partners.get(number)
            if partner is not None:
                merged[partner.place] = _union(merged[partner.place], sentence, partner.notes)
            elif _is_masked(sentence):
                merged.append(replace(sentence, notes=(*sentence.notes, MASKED)))
            else:
                places[_text(sentence)].append(len(merged))
                merged.append(sentence)
    return merged


def _partners(
    part: Sequence[Sentence], places: Mapping[_Text, Sequence[int]], merged: Sequence[Sentence]
) -> dict[int, _Partner]:
    """For sentences of a part, by index, the one among `merged` to join with."""
    same: dict[_Text, list[int]] = defaultdict(list)
    for number, sentence in enumerate(part):
        if (text := _text(sentence)) in places and not _is_masked(sentence):
            same[text].append(number)
    partners: dict[int, _Partner] = {}
    for text, numbers in same.items():
        by_id = {merged[place].id: place for place in places[text]}
        by_id.pop("", None)
        for number in numbers:
            if (place := by_id.pop(part[number].id, None)) is not None:
                partners[number] = _Partner(place)
        taken = {partner.place for number in numbers if (partner := partners.get(number))}
        rest = [number for number in numbers if number not in partners]
        free = [place for place in places[text] if place not in taken]
        notes = () if len(rest) == len(free) else (BY_ORDER,)
        partners |= {number: _Partner(place, notes) for number, place in zip(rest, free, strict=False)}
    return partners


def _text(sentence: Sentence) -> _Text:
    """A sentence's words in the same spelling for all formats, and where the second of a pair begins."""
    return tuple([normalize("NFC", plain_word(word)) for word in sentence.words]), sentence.second


def _is_masked(sentence: Sentence) -> bool:
    """Whether words are masked; an underscore may be a word, but half of a sentence cannot be underscores."""
    masked = [word for word in sentence.words if word in MASKS]
    return any(word != "_" for word in masked) or 2 * len(masked) >= max(1, len(sentence))


def _union(first: Sentence, second: Sentence, notes: tuple[str, ...]) -> Sentence:
    others = dict(second.layers)
    if first.words != second.words:
        trees = {name: value for name, value in others.items() if isinstance(value, Tree)}
        others |= {name: with_words(tree, first.words) for name, tree in trees.items()}
    layers = {name: value for name, value in others.items() if first.layer(name) is None}
    notes = (*first.notes, *second.notes, *notes, *_lost(first, others))
    text = first.text or (second.text if is_spelled(second.text, first.words) else "")
    return replace(first.with_layers(layers), text=text, notes=notes)


def _lost(first: Sentence, others: Mapping[str, Any]) -> Iterator[str]:
    """A note on each layer that differs between two sources; that of the first is kept."""
    for layer, value in others.items():
        if first.layer(layer) not in (None, value):
            yield f"sentence whose '{layer}' of a later source is left out: an earlier one has another"
