"""Spans written as a tag per word: BIO (IOB1, IOB2) and IOBES, which others call BIOES, BILOU or BMES."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from mtl.tasks.sentence import Span

Scheme = Literal["IOB1", "IOB2", "IOBES"]

_PREFIXES = {"IOB1": "BI", "IOB2": "BI", "IOBES": "BIES"}
_TAG = re.compile(r"[BIESLUM]-(.+)")
_IOBES_NAMES = str.maketrans("LUM", "ESI")


class TagError(ValueError):
    """A tag that breaks its scheme; `word` counts from 0."""

    def __init__(self, word: int, what: str) -> None:
        super().__init__(what)
        self.word = word


def entities_of_tags(tags: Sequence[str], scheme: Scheme) -> tuple[Span, ...]:
    """The entities of one sentence; raises `TagError` at the first tag that breaks the scheme."""
    spans, faults = _read(tags, scheme)
    if faults:
        raise faults[0]
    return spans


def repaired(tags: Sequence[str], scheme: Scheme) -> tuple[tuple[Span, ...], int]:
    """The entities of one sentence as `conlleval` finds them, and the number of tags that break the scheme.

    An I- or E- that continues no entity of its label begins one, and an entity ends where the next tag does
    not continue it. Raises `TagError` for what is not a tag of the scheme.
    """
    spans, faults = _read(tags, scheme)
    return spans, len(faults)


def _read(tags: Sequence[str], scheme: Scheme) -> tuple[tuple[Span, ...], list[TagError]]:
    spans: list[Span] = []
    faults: list[TagError] = []
    before, label = "O", ""  # the position tag and label of the word before
    for word, tag in enumerate([*tags, "O"]):
        prefix, name = _split(word, tag, scheme)
        inside = before in "BI" and label == name  # an entity of this label may continue here
        fault = None
        if scheme == "IOBES":
            if before in "BI" and not (inside and prefix in "IE"):
                fault = f"'{tag}' where the entity of '{label}' must continue or end"
            elif prefix in "IE" and not inside:
                fault = f"'{tag}' begins an entity, which IOBES writes B- or S-"
        elif scheme == "IOB2" and prefix == "I" and not inside:
            fault = f"'{tag}' begins an entity, which IOB2 writes B-"
        elif scheme == "IOB1" and prefix == "B" and not inside:
            fault = f"'{tag}' follows no entity of its label, where IOB1 writes I-"
        if fault and word == len(tags):
            faults.append(TagError(word - 1, f"'{tags[-1]}' leaves the last entity without its end (E-)"))
        elif fault:
            faults.append(TagError(word, fault))
        if prefix != "O":
            if prefix in "IE" and inside:
                spans[-1] = spans[-1]._replace(end=word + 1)
            else:
                spans.append(Span(word, word + 1, name))
        before, label = prefix, name
    return tuple(spans), faults


def detect(sentences: Sequence[Sequence[str]]) -> Scheme:
    """The scheme that fits all of a file's tags, or the nearest one; then `entities_of_tags` names the fault.

    A file that fits several schemes, such as one without entities, counts as IOB2.
    """
    if any(tag[1:2] == "-" and tag[0] in "SELUM" for tags in sentences for tag in tags):
        return "IOBES"
    faults: dict[Scheme, int] = {"IOB2": 0, "IOB1": 0}
    for scheme in faults:
        for tags in sentences:
            try:
                entities_of_tags(tags, scheme)
            except TagError:
                faults[scheme] += 1
    return min(faults, key=lambda scheme: faults[scheme])


def _split(word: int, tag: str, scheme: Scheme) -> tuple[str, str]:
    if tag == "O":
        return "O", ""
    prefix, dash, name = tag.partition("-")
    if scheme == "IOBES":
        prefix = prefix.translate(_IOBES_NAMES)
    if not dash or not name or len(prefix) != 1 or prefix not in _PREFIXES[scheme]:
        raise TagError(
            word,
            f"'{tag}' is not a tag of {scheme}, which are O and {', '.join(_PREFIXES[scheme])} with -LABEL",
        )
    return prefix, name


def is_tag(tag: str) -> bool:
    """Whether a tag is one of any scheme."""
    return tag == "O" or _TAG.fullmatch(tag) is not None


class Spelling(NamedTuple):
    """The letters that mark the words of a span, with a dash and the label behind them."""

    first: str = "B"
    inside: str = "I"
    last: str = "I"
    alone: str = "B"


BIO = Spelling()


def spelling_of(tags: Iterable[str]) -> Spelling:
    """The letters of an inventory of tags: those of BIO, unless it has letters that only IOBES has.

    Of the two names that letters have (BIOES and BILOU, BMES), that of the inventory is taken.
    """
    letters = {tag[0] for tag in tags if tag != "O"}
    if letters <= set("BI"):
        return BIO
    return Spelling(
        "B",
        "M" if "M" in letters else "I",
        "L" if letters & set("LU") else "E",
        "U" if letters & set("LU") else "S",
    )


def tags_of(spans: Iterable[Span], words: int, spelling: Spelling = BIO) -> tuple[str, ...]:
    """A tag for each of `words` words; raises `TagError` where spans overlap."""
    tags = ["O"] * words
    for start, end, label in spans:
        for word in range(start, end):
            if tags[word] != "O":
                raise TagError(word, f"overlapping entities at word {word + 1} have no BIO tags")
            if end - start == 1:
                letter = spelling.alone
            elif word == start:
                letter = spelling.first
            else:
                letter = spelling.last if word == end - 1 else spelling.inside
            tags[word] = f"{letter}-{label}"
    return tuple(tags)


def spans_of(tags: Sequence[str]) -> tuple[Span, ...]:
    """The spans of one sentence's tags of any scheme, as `conlleval` finds them (`repaired`)."""
    return _read(tags, "IOBES")[0]
