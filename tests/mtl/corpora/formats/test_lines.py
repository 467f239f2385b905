""""""

from __future__ import annotations

from itertools import product

import pytest

from mtl.corpora.formats.lines import cycle, fault
from mtl.tasks.sentence import Arcs, Frame, Sentence, Span


@pytest.mark.parametrize(
    ("sentence", "word", "what"),
    [
        (Sentence(("a", "")), 1, "word 2 is empty"),
        (Sentence(("\u00a0", "b")), 0, "word 1 is empty"),
        (Sentence(("a", "b\tc")), 1, r"word 2, 'b\tc', holds a control character"),
        (Sentence(("a\n",)), 0, "control character"),
        (Sentence(("\x00",)), 0, "control character"),
        (Sentence(("\ud800",)), 0, r"'\ud800', holds a control character"),
        (Sentence(("a",), id="x\x1b"), None, "the id"),
        (Sentence(("a",), {"x\n": "y"}), None, r"the name 'x\n' holds a control character; take it out"),
        (Sentence(("a",), {"\ud800": ("y",)}), None, r"the name '\ud800' holds a control character"),
        (Sentence(("a",), second=1), None, "'second' is for pairs of sentences, and here is one word"),
        *(
            (Sentence(("a", "b"), second=second), None, f"'second' is {second}; the second sentence")
            for second in (-1, 0, 2)
        ),
        (Sentence(("a", "b"), tags=("X", "")), 1, "'tags' at word 2: an empty label"),
        (Sentence(("a",), upos=("X Y",)), 0, "'upos' at word 1: the label 'X Y' holds white space"),
        (Sentence(("a",), arcs=Arcs((0,), ("",))), 0, "'relations' at word 1"),
        (Sentence((), {"translate": "x", "arcs": Arcs((), ())}), None, "a dependency tree without words"),
        (Sentence(("a", "b"), arcs=Arcs((0, 0), ("x", "x"))), 1, "2 roots, the first at words 1 and 2"),
        (Sentence(("a", "b"), arcs=Arcs((2, 1), ("x", "x"))), 0, "cycle through word 1"),
        (Sentence(("a", "b", "c"), arcs=Arcs((None, 0, 0), ("x",) * 3)), 2, "2 roots, the first at words 2"),
        (Sentence(("a", "b", "c"), arcs=Arcs((None, 3, 2), ("x",) * 3)), 1, "cycle through word 2"),
        (
            Sentence(("a", "b"), arcs=Arcs((None, None), ("x", "x"))),
            None,
            "without heads; leave its layer out",
        ),
        (Sentence(("a", "b"), entities=(Span(1, 2, ""),)), 1, "'entities' at word 2"),
        (Sentence(("a", "b"), frames=(Frame(1, "", ()),)), 1, "'sense' at word 2"),
        (Sentence(("a", "b"), frames=(Frame(1, None, (Span(0, 1, "A\x00"),)),)), 0, "'arguments' at word 1"),
    ],
)
def test_faults(sentence, word, what):
    found = fault(sentence)
    assert found.word == word
    assert what in found.what


@pytest.mark.parametrize(
    "sentence",
    [
        Sentence(("10 000", "a\u00a0b")),
        Sentence(("a", "b"), entities=(Span(0, 2, "X"), Span(0, 1, "Y"), Span(0, 1, "Y"))),
        Sentence(("a", "b"), frames=(Frame(0, None, ()), Frame(0, "x.01", ()))),
        Sentence(("a", "b"), frames=(Frame(0, None, (Span(0, 1, "A"), Span(0, 2, "B"))),)),
    ],
)
def test_what_tasks_count_is_no_fault(sentence):
    assert fault(sentence) is None


def test_cycles_against_following_every_word():
    for n in (1, 2, 3, 4):
        for heads in product(range(n + 1), repeat=n):

            def stays(word: int, heads: tuple[int, ...] = heads) -> bool:
                for _ in range(len(heads)):
                    word = heads[word - 1] if word else 0
                return word != 0

            found = cycle(list(heads))
            assert (found is not None) == any(stays(word) for word in range(1, n + 1))
            if found is not None:
                word, seen = heads[found], []
                while word not in seen:
                    seen.append(word)
                    word = heads[word - 1]
                assert found + 1 in seen
