"""Predicates and their arguments: what BIO tags can represent, and how split arguments are joined."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Frame, Sentence, Span
from mtl.tasks.spans import without_overlaps
from mtl.tasks.task import Labels

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
def split_labels(labels: Labels) -> FrameLabels:
    """The two inventories in a joint one (`FrameLabels.joined`), or in one of roles alone."""
    marked = [name.removeprefix(_SENSE) for name in labels.names if name.startswith(_SENSE)]
    return FrameLabels(Labels(labels.names[: len(labels) - len(marked)]), Labels(marked))


def representable(sentence: Sentence, layer: str) -> list[Frame]:
    """The frames of a layer as far as one BIO tag per word and predicate can hold them.

    The first frame of each predicate is kept, without arguments that cover the predicate's own word, and
    without overlaps (`without_overlaps`). Raises `ValueError` for a predicate or an argument that is not
    within the sentence.
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
        free = [span for span in arguments if not span.start <= predicate < span.end]
        frames.setdefault(predicate, Frame(predicate, frame.sense, tuple(without_overlaps(free))))
    return list(frames.values())


def dropped(sentence: Sentence, layer: str, labels: Labels) -> int:
    """How many arguments `frame_targets` leaves out, those of unknown roles included."""
    represented = [span for frame in representable(sentence, layer) for span in frame.arguments]
    arguments = sum(len(without_verb(frame.arguments)) for frame in sentence.layer(layer) or ())
    return arguments - sum(labels.index(span.label) >= 0 for span in represented)


def joined(frame: Frame) -> set[tuple[str, tuple[tuple[int, int], ...]]]:
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
