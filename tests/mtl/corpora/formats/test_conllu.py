from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mtl.corpora.formats.dependencies import (
    NO_BAR,
    NO_ENTITIES,
    NO_RELATION,
    NO_TEXT,
    RANGE,
    read_conllu,
    to_conllu,
)
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.corpora.formats.lines import NO_HEAD
from mtl.errors import InputError
from mtl.tasks.sentence import Arcs, Sentence, Span
from mtl.tasks.tree import Tree
from tests.mtl.corpora.sentences import LUNCH

TEXT = """\
# newdoc id = d
# sent_id = d-1
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\tVV\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tPP\t_\t1\tobj\t_\t_
2.1\tvamos\tir\tVERB\tVV\t_\t_\t_\t1:conj\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\tIN\t_\t5\tcase\t_\t_
4\tel\tel\tDET\tDT\t_\t5\tdet\t_\t_
5\tmar mayor\tmar\tNOUN\tNN\t_\t1\tobl:arg\t_\t_

1\t#\t#\tSYM\t_\t_\t_\t_\t_\t_
"""


def test_words_tags_and_arcs(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text(TEXT)
    first, second = read_conllu(path)
    assert first == Sentence(
        words=("vamos", "nos", "a", "el", "mar mayor"),
        tags=("VV", "PP", "IN", "DT", "NN"),
        upos=("VERB", "PRON", "ADP", "DET", "NOUN"),
        arcs=Arcs((0, 1, 5, 5, 1), ("root", "obj", "case", "det", "obl:arg")),
        lemmas=("ir", "nosotros", "a", "el", "mar"),
        id="d-1",
        document="d",
    )
    assert second == Sentence(words=("#",), upos=("SYM",), lemmas=("#",), id="a-0002", document="d")
    assert read_conllu(path, column="upos")[0].tags == first.upos


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("\tobj\t_\t_\n", "\tobj\t_\n", 6, "9 columns"),
        ("2\tnos", "3\tnos", 6, "word id '3' where 2 is expected"),
        ("2\tnos", "2-x\tnos", 6, "word id '2-x' where 2 is expected"),
        ("\t5\tcase", "\t6\tcase", 9, "head '6'"),
        ("3-4\t", "3-9\t", 11, "a multiword range ends with word 9, and the sentence has 5 words"),
        ("3-4\t", "4-3\t", 8, "the multiword range '4-3' where one from 3 on"),
        ("3-4\t", "2-4\t", 8, "the multiword range '2-4' where one from 3 on"),
        ("3-4\t", "2.1\te" + "\t_" * 8 + "\n3-4\t", 8, "the empty node '2.1' comes after '2.1'"),
        ("5\tcase\t_\t_", "5\tcase\t_\tNER=O|NER=B-X", 9, "MISC has 'NER' 2 times"),
        ("2.1\t", "5.1\t", 7, "the empty node '5.1' comes after word 2"),
        ("\t5\tcase", "\tfive\tcase", 9, "head 'five'"),
        ("\t5\tcase", "\t-1\tcase", 9, "head '-1'"),
        ("\t5\tcase", "\t" + "9" * 5000 + "\tcase", 9, "head '999"),
        ("\t5\tcase", "\t٣\tcase", 9, "head"),
        ("VV\t_\t0\troot", "VV\t_\t2\troot", 5, "cycle"),
        ("PP\t_\t1\tobj", "PP\t_\t0\tobj", 6, "2 roots, the first at words 1 and 2"),
        ("2\tnos", "2\t", 6, "word 2 is empty"),
        ("2\tnos", "2\tn\x00s", 6, "control character"),
        ("PP\t_\t1\tobj", "PP\t_\t1\t", 6, "an empty label"),
        ("PP\t_\t1\tobj", "PP\t_\t1\tan obj", 6, "white space"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, old, new, line, what):
    path = tmp_path / "a.conllu"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        read_conllu(path)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert what in str(error.value)


def test_lemmas_and_features(tmp_path: Path) -> None:
    """`_` is the lemma of `_`, and means no features; features are in UD's order, whatever the file has."""
    path = tmp_path / "a.conllu"
    rest = "\t_\t_\t_\t_\n"
    path.write_text(
        f"1\t_\t_\tX\t_\tnumber=Sing|Abbr=Yes|Case=Nom{rest}2\tmil anni\tmil anno\tX\t_\t_{rest}\n"
        f"1\tx\t_\tX\t_\t_{rest}\n1\tx\t_\t_\t_\t_{rest}"
    )
    first, second, third = read_conllu(path)
    assert first.layer("lemmas") == ("_", "mil anno")
    assert first.layer("feats") == ("Abbr=Yes|Case=Nom|number=Sing", "_")
    assert first.layer("feats.Case") == ("Nom", "_")
    assert second.layers == {"upos": ("X",), "feats": ("_",)}
    assert third.layers == {}
    path.write_text(f"1\tx\t_\tX\t_\t_{rest}")
    assert read_conllu(path)[0].layers == {"upos": ("X",)}


def test_layers_that_are_left_out_are_not_read(tmp_path: Path) -> None:
    """Their columns may hold anything, and the other layers stay the same."""
    path = tmp_path / "a.conllu"
    path.write_text("1\tWe\twe\tX\tPRP\tCase=Nom\t0\troot\t0:root\t_\n")
    (whole,) = read_conllu(path)
    assert {"lemmas", "feats", "deps"} < set(whole.layers)
    path.write_text("1\tWe\twe\tX\tPRP\tCase=Nom\t0\troot\tnot deps\t_\n")
    left_out = ("lemmas", "feats", "deps")
    assert read_conllu(path, left_out=left_out) == [whole.with_layers(dict.fromkeys(left_out))]


@pytest.mark.parametrize(
    "layers",
    [
        {"lemmas": ("_", "a b"), "feats": ("Case=Nom|Number=Sing", "_")},
        {"lemmas": ("_", "_"), "feats": ("_", "_")},
        {"lemmas": ("x", "y"), "feats.Case": ("Nom", "_")},
        {"lemmas": (Span(0, 1, "A"),), "feats": Arcs((0, 1), ("root", "dep"))},
    ],
)
def test_lemmas_and_features_read_back(tmp_path: Path, layers: dict[str, object]) -> None:
    """Also for layers of these names that hold something else."""
    sentence = Sentence(("_", "a b"), id="1").with_layers(layers)
    file = tmp_path / "a.conllu"
    file.write_text(to_conllu(sentence), encoding="utf8")
    assert read_conllu(file) == [sentence]
    write_jsonl(tmp_path / "a.jsonl", [sentence])
    assert read_jsonl(tmp_path / "a.jsonl") == [sentence]


def test_words_without_a_head_make_a_partial_tree(tmp_path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(TEXT)
    whole = read_conllu(path)[0].arcs
    path.write_text(TEXT.replace("\t5\tcase", "\t_\t_", 1))
    first, second = read_conllu(path)
    assert whole
    assert first.arcs
    assert [pair for pair in zip(whole.heads, first.arcs.heads, strict=True) if pair[0] != pair[1]] == [
        (5, None)
    ]
    assert (first.notes, second.notes) == ((NO_HEAD, NO_TEXT), ())
    again = path.with_suffix(".jsonl")
    write_jsonl(again, [first])
    assert (read_jsonl(again)[0].arcs, read_jsonl(again)[0].notes) == (first.arcs, (NO_HEAD,))
    again.with_suffix(".conllu").write_text(to_conllu(first))
    assert read_conllu(again.with_suffix(".conllu"))[0].arcs == first.arcs


PIECES = st.sampled_from(["a", "as", "de", "el", "x", "noites"])


@st.composite
def tokens(draw: st.DrawFn) -> list[tuple[str, list[str], bool]]:
    """Tokens of a text: their form, their words, and whether white space follows."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        words = draw(st.lists(PIECES, min_size=1, max_size=3))
        spelled = len(words) == 1 or draw(st.booleans())
        found.append(
            ("".join(words) if spelled else draw(st.sampled_from(["à", "do"])), words, draw(st.booleans()))
        )
    return found


@given(tokens(), st.sampled_from(["of the tokens", "none", "another"]))
@example([("à", ["a", "a"], True), ("noite", ["noite"], False), (".", ["."], False)], "of the tokens")
def test_spaces_are_kept_beside_tokens_that_their_words_do_not_spell(
    tokens: list[tuple[str, list[str], bool]], text: str
) -> None:
    surface = "".join(form + " " * space for form, _, space in tokens)
    rows, spaced, number = [], "", 0
    for form, words, space in tokens:
        misc = "_" if space else "SpaceAfter=No"
        if len(words) > 1:
            rows.append(f"{number + 1}-{number + len(words)}\t{form}" + "\t_" * 7 + f"\t{misc}")
        for word in words:
            number += 1
            rows.append(f"{number}\t{word}" + "\t_" * 7 + f"\t{misc if len(words) == 1 else '_'}")
        spaced += ("" if form == "".join(words) else " ").join(words) + " " * space
    comment = {"of the tokens": f"# text = {surface}\n", "none": "", "another": f"# text = {surface}!\n"}[
        text
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.conllu"
        path.write_text(comment + "\n".join(rows) + "\n\n")
        [sentence] = read_conllu(path)
        if text == "another":
            assert (sentence.text, sentence.notes) == ("", (NO_TEXT,))
            return
        assert sentence.notes == (RANGE,) * sum(form != "".join(words) for form, words, _ in tokens)
        assert (sentence.text or " ".join(sentence.words)) == spaced.strip()
        path.write_text(to_conllu(sentence))
        assert read_conllu(path) == [sentence]


@pytest.mark.parametrize("key", [None, "name"])
@pytest.mark.parametrize("blank", [" ", "  ", "\u00a0"])
def test_a_tag_after_a_blank_in_misc_is_counted(blank: str, key: str | None, tmp_path: Path) -> None:
    """`SpaceAfter=No name=B-PER`, where `|` should be."""
    misc = [f"SpaceAfter=No{blank}name=B-PER", "name=B-PER", "Gloss=the name=No", f"X=y{blank}name=O|Z=1"]
    path = tmp_path / "a.conllu"
    path.write_text("".join(f"{n}\tw" + "\t_" * 7 + f"\t{each}\n" for n, each in enumerate(misc, 1)))
    [sentence] = read_conllu(path, entities=key)
    assert sentence.notes.count(NO_BAR) == 2
    assert sentence.entities == (None if key is None else (Span(1, 2, "PER"),))


@pytest.mark.parametrize("columns", ["ID FORM HEAD", "ID FORM DEPREL"])
def test_arcs_without_one_of_their_columns_are_counted(columns: str, tmp_path: Path) -> None:
    path = tmp_path / "a.conllup"
    path.write_text(f"# global.columns = {columns}\n1\tWe\t2\n2\tate\t0\n")
    [sentence] = read_conllu(path)
    assert (sentence.arcs, sentence.notes) == (None, (NO_RELATION,))


def test_ner_in_misc_that_is_no_tag_is_counted(tmp_path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text("".join(f"1\ta{chr(9)}_" + "\t_" * 6 + f"\tNER={tag}\n\n" for tag in ("B-X", "PER", "O")))
    sentences = read_conllu(path)
    assert [sentence.entities for sentence in sentences] == [None] * 3
    assert [sentence.notes for sentence in sentences] == [(), (NO_ENTITIES,), ()]


def test_conllu_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "lunch.conllu"
    file.write_text(to_conllu(LUNCH) * 2, encoding="utf8")
    assert read_conllu(file) == [LUNCH, LUNCH]


def test_conllu_carries_what_has_no_column() -> None:
    lines = to_conllu(LUNCH).splitlines()
    comments = dict(line[2:].split(" = ", 1) for line in lines if line.startswith("#"))
    assert Tree.parse(comments["tree"]) == LUNCH.tree
    assert json.loads(comments["frames"]) == [
        {"word": 2, "sense": "eat.01", "arguments": [[3, 4, "A1"], [1, 1, "A0"]]},
        {"word": 4, "sense": None, "arguments": []},
    ]
    assert comments["text"] == "We ate cold [b]pizza[/b] in New York ."
    misc = [line.split("\t")[9] for line in lines if line[:1].isdigit()]
    assert misc == ["NER=O"] * 5 + ["NER=B-LOC", "NER=I-LOC", "NER=O"]


def test_text_and_the_blanks_in_it() -> None:
    text = "Don't eat (much) 10\u00a0000."
    words = ("Do", "n't", "eat", "(", "much", ")", "10\u00a0000", ".")
    lines = to_conllu(Sentence(words, text=text)).splitlines()
    assert lines[0] == f"# text = {text}"
    misc = [line.split("\t")[9] for line in lines[1:-1]]
    assert [value == "SpaceAfter=No" for value in misc] == [
        True,
        False,
        False,
        True,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("# tree = (S (NN a)", "bracket left open"),
        ("# tree = (S (NN b))", "'tree' has the word 'b' where the sentence has 'a'"),
        ("# frames = [{}]", "here 'word'"),
        ('# frames = [{"word": 2, "sense": null, "arguments": []}]', "it must be 0 to 0"),
        ("# second = 2", "begins at word 2 to 1"),
        ("# stsb = 1_0", "'1_0' is no number"),
    ],
)
def test_faults_of_comments_are_named(tmp_path, comment, message) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(f"{comment}\n1\ta" + "\t_" * 8 + "\n\n")
    with pytest.raises(InputError) as error:
        read_conllu(path)
    assert str(error.value).startswith(f"{path}:1: the comment '# ")
    assert message in str(error.value)


def test_conllu_of_bare_words(tmp_path: Path) -> None:
    """Tabs and line ends in a word would make further columns and rows."""
    bare = Sentence(("a\tb", "c\nd", ""))
    text = to_conllu(bare)
    assert text.splitlines() == [
        "# text = a_b c_d _",
        "1\ta_b" + "\t_" * 8,
        "2\tc_d" + "\t_" * 8,
        "3\t_" + "\t_" * 8,
        "",
    ]
    file = tmp_path / "bare.conllu"
    file.write_text(text, encoding="utf8")
    (read,) = read_conllu(file)
    assert (read.tags, read.arcs) == (None, None)


def test_overlapping_entities_have_no_conllu() -> None:
    overlapping = dataclasses.replace(LUNCH, entities=(Span(0, 3, "PER"), Span(2, 4, "LOC")))
    with pytest.raises(InputError, match="'lunch-1': overlapping entities at word 3"):
        to_conllu(overlapping)
