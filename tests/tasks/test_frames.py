"""Frames as tags and back, and joined for scoring."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl.tasks.decoders.srl import frame_targets, tagged_spans
from mtl.tasks.frames import dropped, joined, representable, roles
from mtl.tasks.sentence import Frame, Sentence, Span
from mtl.tasks.task import Labels

LABELS = Labels(["A0", "A1", "C-A1"])


@given(st.data())
def test_tags_and_back(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 9))
    predicate = data.draw(st.integers(0, length - 1))
    bounds = sorted(data.draw(st.sets(st.integers(0, length), max_size=6)))
    arguments = tuple(
        Span(start, end, data.draw(st.sampled_from(LABELS.names)))
        for start, end in pairwise(bounds)
        if data.draw(st.booleans()) and not start <= predicate < end
    )
    sentence = Sentence(("w",) * length, frames=(Frame(predicate, "x.01", arguments),))
    targets = frame_targets(sentence, "frames", LABELS)
    assert tagged_spans(targets.tags[0], LABELS) == arguments
    assert targets.is_predicate.nonzero()[0].tolist() == targets.predicates.tolist() == [predicate]
    assert dropped(sentence, "frames", LABELS) == 0


def test_what_tags_cannot_hold_is_counted() -> None:
    frame = Frame(
        2,
        None,
        (
            Span(0, 1, "A0"),
            Span(0, 2, "A1"),  # kept: the longer of two that start together
            Span(1, 2, "A0"),
            Span(2, 4, "A1"),  # on the predicate
            Span(4, 5, "A2"),  # a role that training never saw
            Span(2, 3, "V"),
            Span(5, 6, "C-V"),
        ),
    )
    again = Frame(2, None, (Span(4, 5, "A0"),))
    sentence = Sentence(("w",) * 6, frames=(frame, again))
    assert dropped(sentence, "frames", LABELS) == 5
    assert representable(sentence, "frames") == [Frame(2, None, (Span(0, 2, "A1"), Span(4, 5, "A2")))]
    assert frame_targets(sentence, "frames", LABELS).tags.tolist() == [[2, 5, 0, 0, 0, 0]]
    assert roles(sentence.frames) == ["A0", "A1", "A2"]
    assert dropped(Sentence(("w",)), "frames", LABELS) == 0


@pytest.mark.parametrize("frame", [Frame(3, None, ()), Frame(0, None, (Span(1, 4, "A0"),))])
def test_outside_of_the_sentence(frame: Frame) -> None:
    with pytest.raises(ValueError, match="sentence 's', predicate at word"):
        representable(Sentence(("w",) * 3, frames=(frame,), id="s"), "frames")


def test_joining() -> None:
    """As srl-eval.pl: to the latest before it; without one, it is an argument itself."""
    frame = Frame(
        9,
        None,
        (
            Span(0, 1, "C-A1"),
            Span(2, 3, "A0"),
            Span(3, 4, "C-A1"),
            Span(9, 10, "V"),
            Span(4, 5, "A1"),
            Span(5, 7, "C-A1"),
            Span(7, 8, "R-A0"),
            Span(8, 9, "C-V"),
            Span(10, 11, "C-A0"),
        ),
    )
    assert joined(frame) == {
        ("A1", ((0, 1), (3, 4))),
        ("A0", ((2, 3), (10, 11))),
        ("A1", ((4, 5), (5, 7))),
        ("R-A0", ((7, 8),)),
    }
