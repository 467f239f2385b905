from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl.models.windows import rows_of, windows


@given(
    st.lists(st.integers(1, 5), min_size=0, max_size=40),
    st.integers(5, 12),
    st.integers(1, 12),
)
def test_every_word_is_owned_once_where_it_stands_most_centrally(
    counts: list[int], room: int, stride: int
) -> None:
    pieces = np.array(counts, dtype=np.int32)
    found = windows(pieces, room, min(stride, room))
    end = np.cumsum(pieces)
    owner = [
        [w for w, (_, _, mine, mine_end) in enumerate(found) if mine <= word < mine_end]
        for word in range(len(counts))
    ]
    assert all(len(windows_of) == 1 for windows_of in owner)

    def margin(window: int, word: int) -> int:
        first, last, *_ = found[window]
        if not first <= word < last:
            return -1
        return int(min(end[word] - pieces[word] - (end[first] - pieces[first]), end[last - 1] - end[word]))

    for first, last, mine, mine_end in found:
        assert pieces[first:last].sum() <= room
        assert first <= mine <= mine_end <= last
    for word in range(len(counts)):
        assert margin(owner[word][0], word) == max(margin(window, word) for window in range(len(found)))


@pytest.mark.parametrize("stride", [1, 3, 6])
def test_windows_by_hand(stride: int) -> None:
    # One piece a word: windows of 6 words start `stride` apart, the last one ends with the sentence.
    found = windows(np.ones(10, dtype=np.int32), 6, stride)
    assert (
        found
        == {
            1: [(0, 6, 0, 4), (1, 7, 4, 5), (2, 8, 5, 6), (3, 9, 6, 7), (4, 10, 7, 10)],
            3: [(0, 6, 0, 5), (3, 9, 5, 7), (4, 10, 7, 10)],
            6: [(0, 6, 0, 5), (4, 10, 5, 10)],
        }[stride]
    )


def test_rows_carry_the_pieces_of_their_words() -> None:
    counts = [np.array([1, 2]), np.array([2, 2, 2, 2]), np.array([], dtype=np.int64)]
    rows, sentence = rows_of(counts, 5, 2)
    assert sentence.tolist() == [0, 1, 1, 1, 2]
    assert rows.length.tolist() == [3, 4, 4, 4, 0]
    assert rows.pieces.tolist() == [0, 1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 7, 8, 9, 10]
    # Of the second sentence's words each is owned once.
    assert sorted(rows.pieces[rows.owned].tolist()) == list(range(11))
