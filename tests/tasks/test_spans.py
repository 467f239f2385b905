"""Span decoding against enumeration of all sets of non-overlapping spans.
Frames as tags and back, and joined for scoring.
Binarisation is undone exactly, unary chains and several top constituents included.
"""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl.tasks.decoders.crf import tagged_spans
from mtl.tasks.decoders.spans import select_spans
from mtl.tasks.decoders.srl import frame_targets
from mtl.tasks.sentence import Frame, Sentence, Span
from mtl.tasks.spans import (
    binarise,
    build,
    constituents,
    dropped,
    joined_arguments,
    representable_frames,
    restore,
    roles,
    without_overlaps,
)
from mtl.tasks.task import Labels
from mtl.tasks.tree import Tree


def _sets(length: int) -> list[tuple[tuple[int, int], ...]]:
    """All sets of disjoint spans of a sentence (ends exclusive), in order of the text."""

    def after(start: int) -> list[tuple[tuple[int, int], ...]]:
        found: list[tuple[tuple[int, int], ...]] = [()]
        for first, end in combinations(range(start, length + 1), 2):
            found += [((first, end), *rest) for rest in after(end)]
        return found

    return after(0)


@pytest.mark.parametrize("shift", [0.0, -1.0, 1.0])
def test_enumeration(shift: float) -> None:
    rng = np.random.default_rng(7)
    weights = (rng.normal(size=(60, 5, 5)) + shift).astype(np.float32)
    lengths = rng.integers(1, 6, size=60)
    chosen = select_spans(weights, lengths)
    for row, length in enumerate(lengths):
        ours = tuple((start, end) for sentence, start, end in chosen.tolist() if sentence == row)
        best = max(_sets(length), key=lambda spans: sum(weights[row, s, e - 1] for s, e in spans))
        assert ours == best


def test_nothing_to_gain_and_nothing_at_all() -> None:
    assert select_spans(np.full((2, 4, 4), -1.0), np.array([4, 2])).shape == (0, 3)
    assert select_spans(np.zeros((1, 4, 4)), np.array([4])).shape == (0, 3)
    assert select_spans(np.ones((0, 4, 4)), np.array([], dtype=np.int64)).shape == (0, 3)


def test_padding_and_the_lower_triangle_are_not_read() -> None:
    weights = np.full((1, 4, 4), 9.0)
    weights[0][np.triu_indices(4)] = -1.0
    weights[0, :, 2:] = 9.0
    weights[0, 0, 1] = 2.0
    assert select_spans(weights, np.array([2])).tolist() == [[0, 0, 2]]


def test_of_overlapping_spans_the_first_and_longest_stays() -> None:
    spans = [Span(4, 5, "c"), Span(0, 2, "a"), Span(0, 3, "b"), Span(2, 4, "d"), Span(3, 4, "e")]
    assert without_overlaps(spans) == [Span(0, 3, "b"), Span(3, 4, "e"), Span(4, 5, "c")]


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
    assert representable_frames(sentence, "frames") == [Frame(2, None, (Span(0, 2, "A1"), Span(4, 5, "A2")))]
    assert frame_targets(sentence, "frames", LABELS).tags.tolist() == [[2, 5, 0, 0, 0, 0]]
    assert roles(sentence.frames) == ["A0", "A1", "A2"]
    assert dropped(Sentence(("w",)), "frames", LABELS) == 0


@pytest.mark.parametrize("frame", [Frame(3, None, ()), Frame(0, None, (Span(1, 4, "A0"),))])
def test_outside_of_the_sentence(frame: Frame) -> None:
    with pytest.raises(ValueError, match="sentence 's', predicate at word"):
        representable_frames(Sentence(("w",) * 3, frames=(frame,), id="s"), "frames")


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
    assert joined_arguments(frame) == {
        ("A1", ((0, 1), (3, 4))),
        ("A0", ((2, 3), (10, 11))),
        ("A1", ((4, 5), (5, 7))),
        ("R-A0", ((7, 8),)),
    }


def random_tree(seed: int) -> Tree:
    """A tree under TOP with unary chains, flat nodes and words directly under the root."""
    generator = random.Random(seed)

    def node(depth: int) -> Tree:
        if depth == 0 or generator.random() < 0.3:
            return Tree(generator.choice("NVD"), generator.choice("abc"))
        below = tuple(node(depth - 1) for _ in range(generator.choice([1, 1, 2, 3, 4])))
        return Tree(generator.choice(["S", "NP", "VP"]), below)

    return Tree("TOP", tuple(node(4) for _ in range(generator.choice([1, 1, 2, 3]))))


def _assert_exact(tree: Tree) -> None:
    leaves = list(tree.leaves())
    words, tags = [str(leaf.children) for leaf in leaves], [leaf.label for leaf in leaves]
    spans = constituents(tree)
    brackets = binarise(spans, len(words))
    assert len(brackets) == 2 * len(words) - 1
    assert restore(brackets) == spans
    assert build(words, tags, restore(brackets)) == tree
    _assert_binary([(start, end) for start, end, _ in brackets])


def _assert_binary(brackets: list[tuple[int, int]]) -> None:
    """In pre-order, every bracket of several words is followed by its two halves."""

    def skip(place: int) -> int:
        start, end = brackets[place]
        if end - start == 1:
            return place + 1
        assert brackets[place + 1][0] == start
        right = skip(place + 1)
        assert brackets[right] == (brackets[place + 1][1], end)
        return skip(right)

    assert skip(0) == len(brackets)


@given(st.integers(0, 10**6))
def test_random_trees_are_restored_exactly(seed: int) -> None:
    _assert_exact(random_tree(seed))


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("(TOP (S (NP (PRP We)) (VP (VBD ate))))", [(0, 2, "S"), (0, 1, "NP"), (1, 2, "VP")]),
        ("(TOP (S (VP (VB Go))))", [(0, 1, "S"), (0, 1, "VP")]),
        ("(TOP (UH Yes))", []),
        ("(TOP (FW etc) (NP (NN a) (NN b)) (. .))", [(1, 3, "NP")]),
        ("( (S (NN a)))", [(0, 1, "S")]),
        ("(S (NP (NN a)) (VP (VB b)))", [(0, 2, "S"), (0, 1, "NP"), (1, 2, "VP")]),
        ("(UH Yes)", []),
    ],
)
def test_constituents_by_hand(text: str, spans: list[tuple[int, int, str]]) -> None:
    assert list(constituents(Tree.parse(text))) == spans


def test_brackets_by_hand() -> None:
    tree = Tree.parse("(TOP (S (NP (DT a) (JJ b) (NN c)) (VP (VB d)) (. e)))")
    assert binarise(constituents(tree), 5) == [
        (0, 5, "S"),
        (0, 4, ""),
        (0, 3, "NP"),
        (0, 2, ""),
        (0, 1, ""),
        (1, 2, ""),
        (2, 3, ""),
        (3, 4, "VP"),
        (4, 5, ""),
    ]
    assert binarise([Span(0, 1, "S"), Span(0, 1, "VP")], 1) == [(0, 1, "S VP")]


@pytest.mark.parametrize(
    "spans", [[(0, 2, "A"), (1, 3, "B")], [(0, 4, "A")], [(1, 1, "A")], [(0, 2, "A B")], [(0, 2, "")]]
)
def test_what_is_no_tree_is_refused(spans: list[tuple[int, int, str]]) -> None:
    with pytest.raises(ValueError, match=r"cross|no constituent"):
        binarise([Span(*span) for span in spans], 3)


@pytest.mark.parametrize("spans", [[(0, 2, "A"), (1, 3, "B")], [(0, 4, "A")], [(1, 1, "A")]])
def test_no_tree_is_built_from_what_is_none(spans: list[tuple[int, int, str]]) -> None:
    with pytest.raises(ValueError, match="crosses"):
        build("abc", "NNN", [Span(*span) for span in spans])


def test_a_bracket_per_word_is_not_too_deep() -> None:
    """A right-branching tree of a long sentence, as an untrained parser finds it."""
    size = 3_000
    spans = tuple(Span(start, size, "X") for start in range(size - 1))
    tree = build(["a"] * size, ["N"] * size, spans)
    assert tree.height() == size + 2
    assert constituents(tree) == spans
    assert restore(binarise(spans, size)) == spans


def test_roots_of_treebanks_are_no_constituents() -> None:
    for root in ("VROOT", "TOP", "ROOT", "S1", ""):
        tree = Tree.parse(f"({root} (S (NP (PPER Sie)) (VVFIN singt)) ($. .))")
        assert constituents(tree) == (Span(0, 2, "S"), Span(0, 1, "NP"))
