from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl.corpora.formats.conll2003 import read_conll2003
from mtl.corpora.formats.dependencies import NO_WORD
from mtl.errors import InputError
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.spans import TagError, detect, entities_of_tags
from tests.mtl.corpora.formats.hostile import tags_of


@st.composite
def annotated(draw: st.DrawFn) -> tuple[tuple[Span, ...], int]:
    spans, end = [], 0
    for _ in range(draw(st.integers(0, 5))):
        start = end + draw(st.integers(0, 2))
        end = start + draw(st.integers(1, 3))
        spans.append(Span(start, end, draw(st.sampled_from(["PER", "B-X"]))))
    return tuple(spans), end + draw(st.integers(0, 2))


@given(annotated(), st.sampled_from(["IOB1", "IOB2", "IOBES"]))
def test_entities_come_back_and_the_scheme_is_found(sentence, scheme):
    spans, length = sentence
    tags = tags_of(spans, length, scheme)
    assert entities_of_tags(tags, scheme) == spans
    found = detect([tags])
    assert entities_of_tags(tags, found) == spans
    if spans and scheme != "IOBES":
        assert found == scheme


def test_names_of_iobes():
    spans = (Span(0, 3, "A"), Span(3, 4, "B"))
    for tags in (["B-A", "I-A", "L-A", "U-B"], ["B-A", "M-A", "E-A", "S-B"]):
        assert detect([tags]) == "IOBES"
        assert entities_of_tags(tags, "IOBES") == spans


@pytest.mark.parametrize(
    ("tags", "scheme", "word"),
    [
        (["O", "I-A"], "IOB2", 1),
        (["B-A", "I-B"], "IOB2", 1),
        (["B-A"], "IOB1", 0),
        (["I-B", "B-A"], "IOB1", 1),
        (["B-A", "O"], "IOBES", 1),
        (["O", "B-A"], "IOBES", 1),
        (["E-A"], "IOBES", 0),
        (["S-A", "I-A"], "IOBES", 1),
        (["O", "PER"], "IOB2", 1),
        (["S-A"], "IOB2", 0),
        (["B-"], "IOB2", 0),
    ],
)
def test_broken_schemes(tags, scheme, word):
    with pytest.raises(TagError) as error:
        entities_of_tags(tags, scheme)
    assert error.value.word == word


IOB1 = """\
-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
call NN I-NP B-MISC
# # I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""


def test_columns(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(IOB1)
    first, second = read_conll2003(path)
    assert first == Sentence(
        words=("EU", "rejects", "German", "call", "#"),
        entities=(Span(0, 1, "ORG"), Span(2, 3, "MISC"), Span(3, 4, "MISC")),
        id="a-0001",
    )
    assert second.entities == (Span(0, 2, "PER"),)
    assert read_conll2003(path, scheme="IOB1") == [first, second]
    assert read_conll2003(path, columns={"tag": 2})[1].tags == ("NNP", "NNP")


def test_ragged_rows_and_ids(tmp_path):
    path = tmp_path / "a.iob2"
    path.write_text("# sent_id = s-7\n# text = x\n1\tNew York\tB-LOC\t-\tme\n2\t#\tO\n")
    (sentence,) = read_conll2003(path, scheme="IOB2", columns={"word": 2, "entity": 3})
    assert sentence == Sentence(words=("New York", "#"), entities=(Span(0, 1, "LOC"),), id="s-7")


@pytest.mark.parametrize(
    ("old", "new", "scheme", "line", "what"),
    [
        ("rejects VBZ I-VP O", "rejects VBZ O", None, 4, "3 columns"),
        ("I-ORG", "ORG", None, 3, "'ORG' is no"),
        ("I-ORG", "I-ORG", "IOB2", 3, "IOB2 writes B-$"),
        ("Peter NNP I-NP I-PER", "Peter NNP I-NP B-PER", "IOB1", 9, "'B-PER' follows no entity"),
        ("Peter NNP I-NP I-PER", "Peter NNP I-NP B-PER", None, 3, "IOB2 writes B- .*declare"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, old, new, scheme, line, what):
    path = tmp_path / "a.conll"
    path.write_text(IOB1.replace(old, new, 1))
    with pytest.raises(InputError, match=what) as error:
        read_conll2003(path, scheme=scheme)
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_a_sentence_of_one_row_has_the_files_columns(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("Ann - B-PER\nleft - O\n\n - O\n")
    with pytest.raises(InputError, match=r":4: 2 columns, where the file's first row has 3"):
        read_conll2003(path)


@pytest.mark.parametrize("separator", [" ", "\t", " \t"])
@pytest.mark.parametrize(("rows", "line"), [(0, 1), (1, 3)])
def test_a_byte_order_mark_is_no_word_and_no_column_takes_its_place(separator, rows, line, tmp_path):
    path = tmp_path / "a.conll"
    others = separator.join(["-", "-", "O"]) + "\n\n"
    path.write_text(others * rows + f"\ufeff{separator}{others}")
    with pytest.raises(InputError, match=rf":{line}: a byte order mark where the row's first column"):
        read_conll2003(path)
    path.write_text(f"\ufeff \n\ufeff{others}\ufeff\n\ufeff{others}")
    assert [sentence.words for sentence in read_conll2003(path)] == [("-",)] * 2


def test_a_file_whose_rows_all_begin_with_a_hash(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("# note\n#\tO\n#a=b\tB-X\n")
    assert [sentence.words for sentence in read_conll2003(path)] == [("#", "#a=b")]


def test_a_column_that_is_not_there(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("just\nwords\n")
    with pytest.raises(InputError, match=":1: 1 column"):
        read_conll2003(path)


def test_tags_of_rows_that_are_no_words_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.iob2"
    path.write_text(
        "1-2\tdu\tB-X\t-\t-\n1\tde\tO\t-\t-\n2\tle\tB-Y\t-\t-\n2.1\te\tO\t-\t-\n\n1\ta\tO\t-\t-\n"
    )
    first, second = read_conll2003(path, scheme="IOB2", columns={"word": 2, "entity": 3}, numbered=True)
    assert (first.entities, first.notes, second.notes) == ((Span(1, 2, "Y"),), (NO_WORD,), ())
