"""Annotations as spans: without overlaps, of predicates' arguments, as brackets of binary trees, as tags.

The schemes of tags, one per word, are BIO (IOB1, IOB2) and IOBES, which others call BIOES, BILOU or BMES.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Frame, Sentence, Span
from mtl.tasks.task import Labels
from mtl.tasks.tree import ROOTS, Tree


def without_overlaps(spans: Iterable[Span]) -> list[Span]:
    """The spans in order of the text; of overlapping ones the first, the longest if they start together."""
    disjoint: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if not disjoint or span.start >= disjoint[-1].end:
            disjoint.append(span)
    return disjoint


_VERB = ("V", "C-V")
"""The predicate's own span and its continuation: neither is an argument."""
_SENSE = "sense "
"""What precedes a sense in an inventory of roles and senses; labels in files contain no spaces."""


def without_verb(spans: Iterable[Span]) -> tuple[Span, ...]:
    """A frame's arguments: all its spans but the predicate itself (V) and its continuation (C-V)."""
    return tuple([span for span in spans if span.label not in _VERB])


def roles(frames: Iterable[Frame]) -> list[str]:
    """All roles of arguments, sorted."""
    return sorted({span.label for frame in frames for span in frame.arguments} - set(_VERB))


def senses(frames: Iterable[Frame]) -> list[str]:
    """All senses of predicates, sorted."""
    return sorted({frame.sense for frame in frames if frame.sense is not None})


class FrameLabels(NamedTuple):
    """The roles of arguments, and the senses of predicates if these are learned."""

    roles: Labels
    senses: Labels

    def joined(self) -> Labels:
        """One inventory for both: the roles, then the senses with a mark that no role has."""
        return Labels([*self.roles.names, *(_SENSE + name for name in self.senses.names)])


@lru_cache(maxsize=16)
def split_frame_labels(labels: Labels) -> FrameLabels:
    """The two inventories in a joint one (`FrameLabels.joined`), or in one of roles alone."""
    marked = [name.removeprefix(_SENSE) for name in labels.names if name.startswith(_SENSE)]
    return FrameLabels(Labels(labels.names[: len(labels) - len(marked)]), Labels(marked))


def representable_frames(
    sentence: Sentence, layer: str, longest: int | None = None, overlaps: bool = False
) -> list[Frame]:
    """The frames of a layer as far as one BIO tag per word and predicate can hold them.

    The first frame of each predicate is kept, without arguments that cover the predicate's own word, and
    without overlaps (`without_overlaps`). With `overlaps` these are kept, too, and one role for each span.
    Arguments of more than `longest` words are left out first. Raises `ValueError` for a predicate or an
    argument that is not within the sentence.
    """
    frames: dict[int, Frame] = {}
    for frame in sentence.layer(layer) or ():
        predicate, arguments = frame.predicate, without_verb(frame.arguments)
        where = f"sentence '{sentence.id}', predicate at word {predicate}"
        if not 0 <= predicate < len(sentence):
            raise ValueError(f"{where}: the sentence has only {counted(len(sentence), 'word')}")
        for start, end, _ in arguments:
            if not 0 <= start < end <= len(sentence):
                raise ValueError(f"{where}: its argument {start} to {end} is not within the sentence")
        short = [span for span in arguments if longest is None or span.end - span.start <= longest]
        if overlaps:
            kept = list({span[:2]: span for span in reversed(short)}.values())[::-1]
        else:
            kept = without_overlaps(span for span in short if not span.start <= predicate < span.end)
        frames.setdefault(predicate, Frame(predicate, frame.sense, tuple(kept)))
    return list(frames.values())


def dropped(
    sentence: Sentence, layer: str, labels: Labels, longest: int | None = None, overlaps: bool = False
) -> int:
    """How many arguments `representable_frames` leaves out, those of unknown roles included."""
    frames = representable_frames(sentence, layer, longest, overlaps)
    represented = [span for frame in frames for span in frame.arguments]
    arguments = sum(len(without_verb(frame.arguments)) for frame in sentence.layer(layer) or ())
    return arguments - sum(labels.index(span.label) >= 0 for span in represented)


def joined_arguments(frame: Frame) -> set[tuple[str, tuple[tuple[int, int], ...]]]:
    """A frame's arguments as (role, spans): C-X is joined to the latest X before it, as srl-eval.pl does.

    C-X without an X before it is an X itself. V and C-V are left out.
    """
    arguments: list[tuple[str, list[tuple[int, int]]]] = []
    latest: dict[str, list[tuple[int, int]]] = {}
    for start, end, role in sorted(without_verb(frame.arguments), key=lambda span: (span.start, -span.end)):
        if role.startswith("C-"):
            role = role[2:]
            if role in latest:
                latest[role].append((start, end))
                continue
        latest[role] = [(start, end)]
        arguments.append((role, latest[role]))
    return {(role, tuple(spans)) for role, spans in arguments}


NULL = ""
"""The label of a bracket that is no constituent: of an intermediate one, or of a word by itself."""
CHAIN = " "
"""Joins a unary chain's labels, outer first; no label in bracket notation can contain a space."""


def constituents(tree: Tree) -> tuple[Span, ...]:
    """All constituents in pre-order (of a unary chain the outer first), without root and preterminals."""
    starts: list[int] = []
    ends: list[int] = []
    labels: list[str] = []
    words = 0
    waiting: list[Tree | int] = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, int):  # the constituent of this index ends here
            ends[item] = words
        elif isinstance(item.children, str):
            words += 1
        else:
            waiting.append(len(starts))
            starts.append(words)
            ends.append(words)
            labels.append(item.label)
            waiting += item.children[::-1]
    first = 1 if labels and labels[0] in ROOTS else 0
    return tuple(map(Span, starts[first:], ends[first:], labels[first:]))


def build(words: Sequence[str], tags: Sequence[str], spans: Iterable[Span], root: str = "TOP") -> Tree:
    """The tree whose constituents are `spans` (in pre-order) under a root node.

    Raises `ValueError` if a span crosses another, is empty or lies outside of the sentence.
    """
    pending = list(spans)[::-1]
    word = 0
    unfinished: list[tuple[Span, list[Tree]]] = [(Span(0, len(words), root), [])]
    while True:
        span, children = unfinished[-1]
        if pending and pending[-1].start == word < pending[-1].end <= span.end:
            unfinished.append((pending.pop(), []))
        elif word < span.end:
            children.append(Tree(tags[word], words[word]))
            word += 1
        else:
            unfinished.pop()
            tree = Tree(span.label, tuple(children))
            if not unfinished:
                break
            unfinished[-1][1].append(tree)
    if pending:
        raise ValueError(f"constituent {tuple(pending[-1])} crosses another, is empty or lies outside")
    return tree


def binarise(spans: Sequence[Span], length: int) -> list[Span]:
    """The brackets of the left-branching binary tree over the constituents (in pre-order), in pre-order.

    Unary chains become one label, joined by `CHAIN`; every word and the whole sentence get a bracket;
    brackets that are no constituents are `NULL`. Raises `ValueError` if constituents cross, lie outside of
    the sentence, or have no label or one with a space.
    """
    labels = {(0, length): NULL} | {(word, word + 1): NULL for word in range(length)}
    for start, end, label in spans:
        if not 0 <= start < end <= length or not label or CHAIN in label:
            raise ValueError(
                f"({start}, {end}, '{label}') is no constituent of a sentence of {counted(length, 'word')}"
            )
        outer = labels.get((start, end), NULL)
        labels[start, end] = f"{outer}{CHAIN}{label}" if outer else label
    above: list[tuple[int, int]] = []
    for start, end in sorted(labels, key=_pre_order):
        while above and above[-1][1] <= start:
            above.pop()
        if above:
            first, last = above[-1]
            if end > last:
                raise ValueError(f"constituents ({first}, {last}) and ({start}, {end}) cross")
            if first < start and end < last:
                labels[first, end] = NULL  # (((1 2) 3) 4): intermediates start where the constituent does
        above.append((start, end))
    return [Span(start, end, labels[start, end]) for start, end in sorted(labels, key=_pre_order)]


def _pre_order(span: tuple[int, int]) -> tuple[int, int]:
    return span[0], -span[1]


def restore(brackets: Iterable[Span]) -> tuple[Span, ...]:
    """The constituents (in pre-order) that brackets in pre-order encode: the inverse of `binarise`."""
    return tuple(
        Span(start, end, label)
        for start, end, chain in brackets
        if chain != NULL
        for label in chain.split(CHAIN)
    )


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
