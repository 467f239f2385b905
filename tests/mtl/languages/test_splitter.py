"""Running text in other languages, by spaCy's rules: nothing is lost, and missing packages are named."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mtl.corpora.annotated_text import offsets_of
from mtl.corpora.formats.dependencies import read_conllu, to_conllu
from mtl.corpora.running_text import Splitter, splitter_for
from mtl.errors import InputError
from mtl.languages.splitter import splitter_of
from mtl.tasks.sentence import Sentence

pytest.importorskip("spacy")


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("zh", "我们在巴黎吃饭。他睡觉了。", ["我们 在 巴黎 吃饭 。", "他 睡觉 了 。"]),
        ("de", "Er wohnt z.B. in Ulm. Das kostet 5,50 €.", ["Er wohnt z.B. in Ulm .", "Das kostet 5,50 € ."]),
        ("it", "L'uomo dorme.  Sogna !", ["L' uomo dorme .", "Sogna !"]),
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


class _JoinsAll:
    """In place of pyvi's model: all syllables between marks are one word."""

    def __getattr__(self, name: str) -> _JoinsAll:
        return self

    def sent2features(self, words: list[str], _: bool) -> list[str]:
        return words

    def predict(self, sentences: list[list[str]]) -> list[list[str]]:
        return [["I_W"] * len(words) for words in sentences]


@pytest.fixture(scope="module")
def vietnamese() -> Iterator[Splitter]:
    with pytest.MonkeyPatch.context() as patch:
        module = ModuleType("pyvi")
        module.ViTokenizer = _JoinsAll()
        patch.setitem(sys.modules, "pyvi", module)
        yield splitter_for("vi")


@given(
    st.lists(
        st.sampled_from(
            [
                "học",
                "sinh",
                "Hà",
                "Nội",
                " ",
                "  ",
                "\t",
                "\n",
                "\r\n",
                "\u00a0",
                ".",
                "e\u0301",
                "😀",
                "_",
                "1.5",
                "\u200b",
                "\u200d",
                "\x07",
                "\u2028",
            ]
        )
    ).map("".join)
)
@example("Hà\u00a0Nội  là\tthủ đô.\nHọc\nsinh")
@settings(deadline=None)
def test_words_of_several_syllables_have_their_places(vietnamese: Splitter, text: str) -> None:
    """Vietnamese: white space within a word is one blank, and the place holds what is in the text."""
    sentences = vietnamese(text)
    for sentence, offsets in zip(sentences, offsets_of(text, sentences), strict=True):
        for word, (start, end) in zip(sentence.words, offsets, strict=True):
            assert word == " ".join(text[start:end].replace("\x07", " ").split())
        [again] = sentences_in(to_conllu(sentence))
        assert (again.words, again.text or " ".join(again.words)) == (sentence.words, sentence.text)
    plain = "".join(text.replace("\x07", " ").split())
    assert "".join("".join(word.split()) for sentence in sentences for word in sentence.words) == plain


def sentences_in(conllu: str) -> list[Sentence]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.conllu"
        path.write_text(conllu)
        return read_conllu(path)


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
