from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtl.corpora.formats.lines import CARRIAGE_RETURN
from mtl.corpora.input_lines import pairs, records_of, tokens
from mtl.corpora.raw_text import sentences_of
from mtl.corpora.running_text import splitter_for


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("We ate.", "We ate ."),
        ("I can't, won't and don't.", "I ca n't , wo n't and do n't ."),
        ("She's John's; they've gone.", "She 's John 's ; they 've gone ."),
        ("He’s here, isn’t he?", "He ’s here , is n’t he ?"),
        ('"Yes," she said (twice).', '" Yes , " she said ( twice ) .'),
        ("It cost $3.50, or 1,000 yen.", "It cost $ 3.50 , or 1,000 yen ."),
        ("Dr. Smith left the U.S. at 5 p.m. sharp", "Dr. Smith left the U.S. at 5 p.m. sharp"),
        ("a well-known and/or 3-year plan", "a well - known and / or 3 - year plan"),
        ("e-mail the non-profit, 9-11", "e-mail the non-profit , 9-11"),
        ("see http://a.org/b-c?d=1, or www.x.com.", "see http://a.org/b-c?d=1 , or www.x.com ."),
        ("write to jo.doe@mail-host.co.uk!", "write to jo.doe@mail-host.co.uk !"),
        ("Really?!! Ok...", "Really ?!! | Ok ..."),
        ("fine :) -- yes", "fine :) -- yes"),
        ("(see [1])", "( see [ 1 ] )"),
        ("It rained. We ate. Mr. Lee slept!", "It rained . | We ate . | Mr. Lee slept !"),
        ("", ""),
        (" \n", ""),
    ],
)
def test_cases(text: str, words: str) -> None:
    assert " | ".join(" ".join(sentence.words) for sentence in sentences_of(text)) == words


@given(
    st.one_of(
        st.text(max_size=60),
        st.text(alphabet="aB1 .,!?-/'\"`:;()[]<>$%@&*=_’“”\n\t", max_size=60),
        st.lists(
            st.sampled_from(["can't", "U.S.", "e-mail", "http://a.b", "x@y.z", "''", "``", "...", "!!", "We"])
        ).map(" ".join),
    )
)
@settings(deadline=None, max_examples=150)
def test_nothing_is_lost_or_added(text: str) -> None:
    sentences = sentences_of(text)
    assert "".join(word for sentence in sentences for word in sentence.words) == "".join(text.split())
    assert all(sentence.words for sentence in sentences)
    assert all("".join(sentence.words) == "".join(sentence.text.split()) for sentence in sentences)
    assert all(word and word.split() == [word] for sentence in sentences for word in sentence.words)


@pytest.mark.parametrize("text", ["a" * 1_000_000, "a-" * 200_000, "www." * 100_000, "a." * 200_000])
def test_a_word_of_a_million_letters_takes_no_quadratic_time(text: str) -> None:
    start = time.process_time()
    assert "".join(word for sentence in sentences_of(text) for word in sentence.words) == text
    assert time.process_time() - start < 30


@pytest.mark.parametrize("split", [splitter_for("en"), tokens, pairs], ids=range(3))
def test_lines_that_end_in_carriage_returns_are_not_one_line(split) -> None:
    (record,) = records_of(7, b"Ann left .\rBob\tsat .\r", split, 99, "x")
    assert (record.sentence.id, record.sentence.words) == ("7", ())
    assert record.skipped == CARRIAGE_RETURN
    (record,) = records_of(7, b"Ann left .\tBob sat .\r\r", split, 99, "x")[:1]
    assert record.skipped is None
