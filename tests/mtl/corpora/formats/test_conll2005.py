from __future__ import annotations

import pytest

from mtl.corpora.formats.phrase_structure import read_conll2005
from mtl.errors import InputError
from mtl.tasks.sentence import Frame, Span

PROPS = """\
-     (A0*    (A0*
want  (V*)    *
-     (A1*    *
go    *)      (V*
-     *       *)
-     (AM-TMP*) (C-A1*)

-

say   (V*)
"""
WORDS = "Ann\nwants\nto\ngo\non\nnow\n\nYes\n\nSay\n"
FRAMES = (
    Frame(1, None, (Span(0, 1, "A0"), Span(2, 4, "A1"), Span(5, 6, "AM-TMP"))),
    Frame(3, None, (Span(0, 1, "A0"), Span(5, 6, "C-A1"))),
)


@pytest.fixture
def props(tmp_path):
    path = tmp_path / "a.props"
    path.write_text(PROPS.replace("(A0*    (A0*", "(A0*)   (A0*)"))
    return path


def test_words_beside(props):
    props.with_suffix(".words").write_text(WORDS)
    first, second, third = read_conll2005(props)
    assert first.words == ("Ann", "wants", "to", "go", "on", "now")
    assert first.frames == FRAMES
    assert (second.words, second.frames) == (("Yes",), ())
    assert third.frames == (Frame(0, None, ()),)
    assert first.tags is first.tree is first.entities is first.arcs is None


def test_words_and_other_columns_before(props):
    rows = props.read_text().splitlines()
    words = iter(WORDS.replace("\n\n", "\n").splitlines())
    senses = {"want": "01", "go": "XX", "say": "01"}
    wide = [f"{next(words)} NN (S* * {senses.get(row.split()[0], '-')} {row}" if row else row for row in rows]
    path = props.with_name("wide.props")
    path.write_text("\n".join(wide))
    first, second, third = read_conll2005(path)
    assert first.words == ("Ann", "wants", "to", "go", "on", "now")
    assert [frame.sense for frame in first.frames] == ["want.01", "go.XX"]
    assert [frame.arguments for frame in first.frames] == [frame.arguments for frame in FRAMES]
    assert second.frames == ()
    assert third.frames == (Frame(0, "say.01", ()),)


def test_words_missing_or_of_another_length(props):
    with pytest.raises(InputError, match="no words in its columns"):
        read_conll2005(props)
    other = props.with_name("other.txt")
    other.write_text(WORDS.replace("on\n", ""))
    with pytest.raises(InputError, match=f"{other}:1: 5 words for 6 rows"):
        read_conll2005(props, words=other)
    other.write_text(WORDS.removesuffix("\nSay\n"))
    with pytest.raises(InputError, match=r"a\.props:10: .* has 2 sentences, and .* 3"):
        read_conll2005(props, words=other)


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("want", "-", 1, r"1 predicate in column 1, but 2 column"),
        ("(C-A1*)", "C-A1", 1, "predicate"),
        ("(V*\n", "(V*)\n", 5, "never opened"),
        ("say   (V*)", "say   (V*) *", 10, "1 predicate"),
    ],
)
def test_faults_are_named_with_their_line(props, old, new, line, what):
    text = props.read_text()
    assert old in text
    props.write_text(text.replace(old, new, 1))
    props.with_suffix(".words").write_text(WORDS)
    with pytest.raises(InputError, match=what) as error:
        read_conll2005(props)
    assert str(error.value).startswith(f"{props}:{line}: ")
