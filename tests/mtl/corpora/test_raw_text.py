from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mtl.corpora.formats.lines import CARRIAGE_RETURN
from mtl.corpora.raw_text import _UNBROKEN, _sentence_tokenizer, sentences_of
from mtl.corpora.running_text import records_of, sentence_pairs, splitter_for, tokens


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
        ("Thanks!!", "Thanks !!"),
        ("What?! Great !!! See you.", "What ?! | Great !!! | See you ."),
        ("Yahoo!'s stock rose. Yahoo!(the firm)", "Yahoo ! 's stock rose . | Yahoo ! ( the firm )"),
        ("See www.a.com/q?[b]=1 now. http://a.com/b!@c", "See www.a.com/q?[b]=1 now . | http://a.com/b!@c"),
        ('"Go!!" She went.', '" Go !! " | She went .'),
        ("I saw Mr. X??? (e.g. this!). Bye", "I saw Mr. X ??? | ( e.g. this ! ) . | Bye"),
        ("It rained. We ate. Mr. Lee slept!", "It rained . | We ate . | Mr. Lee slept !"),
        ("", ""),
        (" \n", ""),
    ],
)
def test_cases(text: str, words: str) -> None:
    assert " | ".join(" ".join(sentence.words) for sentence in sentences_of(text)) == words


@pytest.mark.slow
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


@given(
    st.lists(
        st.sampled_from(
            [
                "!",
                "?",
                ".",
                "!!",
                "?!",
                "...",
                "???",
                "(",
                ")",
                "[b]",
                '"',
                "'",
                "'s",
                "”",
                ":)",
                "-",
                "*",
                "&",
                "=1",
                "http://a.com/",
                "www.a.org",
                "x@y.z",
                "Yahoo",
                "He",
                "left",
                "U.S.",
                "Mr.",
                "5",
                "é",
                "😀",
                "👩\u200d👧",
                "\u200b",
                " ",
                "  ",
                "\n",
                "\u00a0",
                "\t",
            ]
        ),
        max_size=14,
    ).map("".join)
)
@example("Thanks!!")
@example("Great !! See you.")
@example("See https://a.com/?(x)=1 now.")
@example("Yahoo!'s stock")
@example("Mr. He!!")
@settings(deadline=None, max_examples=400)
def test_no_sentence_ends_within_a_word(text: str) -> None:
    """What has no white space in it is of one sentence, and what the rule calls a word is one."""
    sentences = sentences_of(text)
    assert "Mr." not in {sentence.text.split()[-1] for sentence in sentences[:-1]}
    stretches = [stretch for sentence in sentences for stretch in sentence.text.split()]
    assert stretches == text.split()
    words = Counter(word for sentence in sentences for word in sentence.words)
    assert Counter(match[0] for match in _UNBROKEN.finditer(text)) <= words


@pytest.mark.parametrize(("unit", "number"), [("!", 12_500), ("a!(b", 3_125), ("Hm?! ", 312)])
def test_marks_in_a_row_take_no_quadratic_time(unit: str, number: int) -> None:
    """A text of four times the length takes about four times as long, and would take sixteen times."""

    def seconds(text: str) -> float:
        start = time.process_time()
        assert sentences_of(text)
        return time.process_time() - start

    # The fastest of three, since other programs make any of them slower.
    once, four_times = (min(seconds(text) for _ in range(3)) for text in (number * unit, 4 * number * unit))
    assert four_times < 8 * once


def test_nltk_sets_no_limit_on_the_time_for_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit on a regular expression counts the time between two matches, too."""
    redos = pytest.importorskip("nltk.redos")
    monkeypatch.setattr(redos, "DEFAULT_TIMEOUT", 0.2)
    spans = _sentence_tokenizer().span_tokenize("We ate. It rained. Bye.")
    first = next(spans)
    time.sleep(0.25)
    assert [first, *spans] == [(0, 7), (8, 18), (19, 23)]


@pytest.mark.parametrize("text", ["a" * 1_000_000, "a-" * 200_000, "www." * 100_000, "a." * 200_000])
def test_a_word_of_a_million_letters_takes_no_quadratic_time(text: str) -> None:
    start = time.process_time()
    assert "".join(word for sentence in sentences_of(text) for word in sentence.words) == text
    assert time.process_time() - start < 30


@pytest.mark.parametrize("split", [splitter_for("en"), tokens, sentence_pairs], ids=range(3))
def test_lines_that_end_in_carriage_returns_are_not_one_line(split) -> None:
    (record,) = records_of(7, b"Ann left .\rBob\tsat .\r", split, 99, "x")
    assert (record.sentence.id, record.sentence.words) == ("7", ())
    assert record.skipped == CARRIAGE_RETURN
    (record,) = records_of(7, b"Ann left .\tBob sat .\r\r", split, 99, "x")[:1]
    assert record.skipped is None
