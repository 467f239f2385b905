"""No verdict has a negative number of something that is less, lost or scored."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtl.probes.stem_cell.competition import LOST, MORE
from mtl.probes.stem_cell.contest import WORTH, _word
from mtl.probes.stem_cell.sharing import SCORED
from mtl.probes.stem_cell.sharing import word_on as word_of_sharing
from tests.probes.stem_cell.test_wording import ENDS, SIGNED


@pytest.mark.parametrize("words", [LOST, MORE, WORTH, SCORED])
def test_words_have_no_sign(words):
    assert words.of(-0.5).endswith(words.more)
    assert words.of(0.5).endswith(words.less)
    assert not SIGNED.search(words.of(-0.5))


@given(ENDS, ENDS, ENDS, st.floats(0, 1), st.integers(1, 12))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_verdict_prints_a_negative_loss(
    one: float, two: float, three: float, p: float, seeds: int
) -> None:
    low, value, high = sorted((one, two, three))
    row = {"task": "pos", "seeds": seeds, "loss": value, "low": low, "high": high, "p": p, "p_holm": p}
    losses = pl.DataFrame([row])
    for text in (
        _word(seeds, p, 0.05, (value, low, high), (p, value, low, high))[1],
        word_of_sharing(losses)[1],
    ):
        assert not SIGNED.search(text), text
