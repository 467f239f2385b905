"""Words of running text have exact offsets, in every language, whatever the text holds."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mtl.corpora import running_text
from mtl.corpora.annotated_text import offsets_of
from mtl.corpora.running_text import split
from mtl.features import added
from mtl.tasks.sentence import Sentence

HOSTILE = st.one_of(
    st.text(max_size=60),
    st.text("aB1 .,!?-/'\"`:;()[]<>$%@&*=_’“”\n\t\r\0\x1b\u00a0\u200b\u2028\ufeffé😀", max_size=50),
    st.lists(
        st.sampled_from(
            ["can't", "U.S.", "e-mail", "http://a.b", "x@y.z", "''", "``", "...", "We", " ", "\r\n", "A" * 90,
             "👩‍👩‍👧", "e\u0301", "我们吃饭。", "<b>", "\x85", "\u3000"]
        )
    ).map("".join),
)  # fmt: skip

OTHERS = ("de", "zh", "xx") if added(lambda feature: feature.splitters) else ()
"""Languages that a feature has rules for."""


@pytest.mark.parametrize("language", ["en", *OTHERS])
@given(text=HOSTILE)
@example(text="")
@example(text=" \n\t")
@example(text="aa a\0aa\u2028aaa")
def test_offsets_are_exact_and_leave_out_white_space_only(language: str, text: str) -> None:
    if language != "en":
        pytest.importorskip("spacy")
    sentences = split(text, language)
    offsets = offsets_of(text, sentences)
    here = 0
    for sentence, places in zip(sentences, offsets, strict=True):
        assert tuple(text[start:end] for start, end in places) == sentence.words
        for start, end in places:
            left_out = text[here:start].replace("\ufeff", " ")
            assert all(letter.isspace() or ord(letter) < 0xA0 for letter in left_out)
            here = end
    assert not any(letter.isalnum() for letter in text[here:])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\x85", "\u2028"])
@pytest.mark.parametrize("language", ["en", *OTHERS])
def test_a_blank_line_ends_a_sentence_and_a_line_does_not(language: str, end: str) -> None:
    if language != "en":
        pytest.importorskip("spacy")
    for blank in ("", " ", "\t \u00a0", "\0", "\x1f"):
        letter = f"Dear Bob,{end}{blank}{end}{end}Thanks for{end}lunch{end}{blank}{end}Ann{end}"
        assert [sentence.words for sentence in split(letter, language)] == [
            ("Dear", "Bob", ","), ("Thanks", "for", "lunch"), ("Ann",)
        ], repr(blank)  # fmt: skip
    assert len(split("Annual report\u2029Ann ate.", language)) == 2


def test_words_that_are_not_the_texts_have_no_place() -> None:
    for words in (("We", "left"), ("ate",), ("We", "We")):
        with pytest.raises(ValueError, match="the text has no word"):
            offsets_of("We ate.", [Sentence(words)])


def test_a_long_text_takes_no_quadratic_time() -> None:
    text = "We ate in Paris. " * 20_000
    sentences = [Sentence(("We", "ate", "in", "Paris", "."))] * 20_000
    start = time.process_time()
    assert offsets_of(text, sentences)[-1][-1] == (len(text) - 2, len(text) - 1)
    assert time.process_time() - start < 5


def test_no_thread_waits_for_the_long_text_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """No splitter is used by two threads at once, and none is made if one is free."""
    made: list[set[int]] = []
    begun, go_on = threading.Event(), threading.Event()

    def splitter_for(language: str) -> running_text.Splitter:
        users: set[int] = set()
        made.append(users)

        def splitter(text: str) -> list[Sentence]:
            assert not users
            users.add(threading.get_ident())
            if text == "long":
                begun.set()
                assert go_on.wait(20)
            users.clear()
            return [Sentence((text,))]

        return splitter

    monkeypatch.setattr(running_text, "splitter_for", splitter_for)
    monkeypatch.setattr(running_text, "_FREE", {})
    long = threading.Thread(target=split, args=("long", "en"))
    long.start()
    assert begun.wait(20)
    short = [threading.Thread(target=split, args=("short", "en"), daemon=True) for _ in range(3)]
    for each in short:
        each.start()
        each.join(5)
    waited = any(each.is_alive() for each in short)
    go_on.set()
    long.join()
    assert not waited
    assert len(made) == 2
