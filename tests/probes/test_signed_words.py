"""No statement has a negative number of something that is less, lost or scored: the sign is a word."""

from __future__ import annotations

import re

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtl.probes.signed_words import ANY, SignedWords
from mtl.probes.stem_cell.figures.dose import _title
from mtl.probes.stem_cell.statistics.competition import LOST, MORE
from mtl.probes.stem_cell.statistics.contest import WORTH, _word
from mtl.probes.stem_cell.statistics.dose import ALL, word_on
from mtl.probes.stem_cell.statistics.sharing import SCORED
from mtl.probes.stem_cell.statistics.sharing import _word as word_of_sharing

SIGNED = re.compile("(?<!e)[-+\N{MINUS SIGN}]\\d")
ENDS = st.floats(allow_nan=False, min_value=-3, max_value=3)


@given(ENDS, ENDS, st.sampled_from((LOST, MORE, WORTH, SCORED, SignedWords("less", "more", "%", 0, 100))))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_words_say_the_value(one: float, other: float, words: SignedWords) -> None:
    text = words.of(one)
    number, _, rest = text.partition(" ")
    sign = -1 if rest.endswith(words.more) else 1
    assert rest in (f"{words.unit} {words.less}", f"{words.unit} {words.more}")
    assert sign * float(number) == pytest.approx(words.scale * one, abs=0.5001 * 10**-words.decimals)
    assert sign == 1 or float(number) > 0  # what rounds to zero is not more
    low, high = sorted((one, other))
    interval = words.interval(low, high)
    assert not SIGNED.search(interval)
    assert {word for word in (words.less, words.more) if word in interval} == {
        words.of(end).split()[-1] for end in (low, high)
    }


def test_what_is_not_finite_is_any_number() -> None:
    assert WORTH.of(float("nan")) == WORTH.of(None) == ANY
    assert WORTH.interval(float("-inf"), 0.056) == f"{ANY} to 5.6 % less"
    assert WORTH.interval(-0.04, 0.056) == "4.0 % more to 5.6 % less"
    assert WORTH.interval(0.01, 0.056) == "1.0 to 5.6 % less"


@given(ENDS, ENDS, ENDS, st.floats(0, 1), st.integers(1, 12))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_verdict_prints_a_negative_loss(
    one: float, two: float, three: float, p: float, seeds: int
) -> None:
    low, value, high = sorted((one, two, three))
    row = {"pair": ALL, "task": ALL, "loss": value, "low": low, "high": high, "p": p, "runs": seeds}
    table = pl.DataFrame([row])
    for text in (
        _word(seeds, p, 0.05, (value, low, high))[1],
        word_of_sharing(seeds, value, low, high, 0.05)[1],
        word_on(table)[1],
        _title(table),
    ):
        assert not SIGNED.search(text), text
