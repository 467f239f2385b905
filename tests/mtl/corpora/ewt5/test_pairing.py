from __future__ import annotations

from itertools import combinations

import nltk
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl.corpora.ewt5.build import corresponds, edit_distance, pair_sentences

KEYS = st.lists(st.sampled_from("abc"), max_size=6)
DOCUMENT = st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=2), max_size=4)


@given(KEYS, KEYS)
def test_edit_distance_against_nltk(left, right):
    assert edit_distance(left, right) == nltk.edit_distance(left, right)


def worth(left, right, i, j):
    if not corresponds(left[i], right[j]):
        return None
    agreeing = sum(a == b for a, b in zip(left[i], right[j], strict=True))
    same_place = len(left) == len(right) and i == j
    return agreeing + 0.5 if same_place or agreeing >= len(left[i]) / 2 else None


@given(DOCUMENT, DOCUMENT)
def test_no_monotone_pairing_is_better(left, right):
    def value(pairs):
        gains = [worth(left, right, i, j) for i, j in pairs]
        return None if None in gains else sum(gains)

    every = [
        value(list(zip(rows, columns, strict=True)))
        for size in range(min(len(left), len(right)) + 1)
        for rows in combinations(range(len(left)), size)
        for columns in combinations(range(len(right)), size)
    ]
    found = [(i, j) for i, j in enumerate(pair_sentences(left, right)) if j is not None]
    assert [j for _, j in found] == sorted({j for _, j in found})
    together = len(left) == len(right) and all(map(corresponds, left, right))
    assert together or value(found) == max(gain for gain in every if gain is not None)


@pytest.mark.parametrize(
    ("left", "right", "pairs"),
    [
        # one to one, with labels changed since
        (["DT NN .", "UH"], ["DT NNP .", "NN"], [0, 1]),
        # the second sentence was split: the third pairs again
        (["DT NN .", "PRP VB , RB .", "UH !"], ["DT NN .", "PRP VB ,", "RB .", "UH !"], [0, None, 3]),
        # the first two were merged
        (["DT NN", "PRP VB", "UH !"], ["DT NN PRP VB", "UH !"], [None, None, 1]),
        # a word was split in the second sentence only
        (["DT NN", "PRP VB", "UH !"], ["DT NN", "PRP VB RB", "UH !"], [0, None, 2]),
        # as many words, but one split and another joined between: shifted
        (["LS WP DT NN IN DT JJ NN CD CC"], ["LS WP DT VBZ NN IN DT JJ NN CC"], [None]),
        (["DT NN VB RB"], ["NN VB RB UH"], [None]),
        ([], ["UH"], []),
        (["UH"], [], [None]),
    ],
)
def test_editions_that_differ(left, right, pairs):
    assert pair_sentences([text.split() for text in left], [text.split() for text in right]) == pairs
