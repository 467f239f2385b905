"""Findings are worded without signs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtl.probes.stem_cell.wording import ANY, SignedWords

SIGNED = re.compile("(?<!e)[-+\N{MINUS SIGN}]\\d")
WORTH = SignedWords("less", "more", "%", 1, 100)
POINTS = SignedWords("lost", "gained", "points", 2, 100)
ENDS = st.floats(allow_nan=False, min_value=-3, max_value=3)


@given(ENDS, ENDS, st.sampled_from((WORTH, POINTS, SignedWords("less", "more", "%", 0, 100))))
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


def test_ends_beyond_meaning_are_any_number() -> None:
    shares = SignedWords("less", "more", "%", 1, 100, most=1)
    assert shares.interval(-163617027.859, 0.168) == f"{ANY} to 16.8 % less"
    assert shares.interval(-0.553, 23.3) == f"55.3 % more to {ANY}"
    assert shares.of(-1.5) == "150.0 % more"  # an estimate is what it is
