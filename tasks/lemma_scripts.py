"""Edit scripts that turn a form into its lemma, as in UDPipe 2.0 (Straka 2018).

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
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

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
