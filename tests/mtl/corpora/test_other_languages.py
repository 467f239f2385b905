"""Running text in other languages, by spaCy's rules: nothing is lost, and missing packages are named."""

from __future__ import annotations

import sys

import pytest

from mtl.corpora.other_languages import splitter_of
from mtl.errors import InputError

pytest.importorskip("spacy")


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("zh", "我们在巴黎吃饭。他睡觉了。", ["我们 在 巴黎 吃饭 。", "他 睡觉 了 。"]),
        ("de", "Er wohnt z.B. in Ulm. Das kostet 5,50 €.", ["Er wohnt z.B. in Ulm .", "Das kostet 5,50 € ."]),
        ("fr", "L'homme dort.  Il rêve !", ["L' homme dort .", "Il rêve !"]),
        ("hi", "यह घर है। वह गया।", ["यह घर है ।", "वह गया ।"]),
        ("xx", "Он ушёл. Я нет.", ["Он ушёл .", "Я нет ."]),
        ("de", "", []),
        ("de", "  \u00a0 ", []),
    ],
)
def test_sentences_and_words(language: str, text: str, sentences: list[str]) -> None:
    found = splitter_of(language)(text)
    assert [" ".join(sentence.words) for sentence in found] == sentences
    assert "".join("".join(sentence.words) for sentence in found) == "".join(text.split())
    assert "".join(sentence.text for sentence in found).replace(" ", "") == "".join(text.split())


def test_a_long_text_is_split() -> None:
    assert len(splitter_of("de")("Das ist gut. " * 10_000)) == 10_000


@pytest.mark.parametrize(
    ("language", "message"),
    [
        ("german", r"^language=german: no such language.*\(spaCy's are af, .*zh\)$"),
        ("", "no such language"),
        ("th", r"^language=th: .*PyThaiNLP.* Or split the words yourself \(--input=tokens\)$"),
    ],
)
def test_what_there_is_not_is_said_in_one_line(language: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        splitter_of(language)
    assert "\n" not in str(error.value)


def test_without_spacy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(InputError, match=r"which is not installed: pip install 'mtl-heads\[languages\]'"):
        splitter_of("de")


def test_a_tokenizer_that_gives_up_skips_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import spacy

    split = splitter_of("de")
    monkeypatch.setattr(spacy.language.Language, "__call__", lambda self, text: 1 / 0)
    with pytest.raises(ValueError, match=r"spaCy cannot split it \(division by zero\)"):
        split("Ja.")
