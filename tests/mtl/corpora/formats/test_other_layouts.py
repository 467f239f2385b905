"""Layouts of published files: of named entities in columns, and of CoNLL-U."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from mtl.corpora.folder import convert_corpus
from mtl.corpora.formats.dependencies import ATTACHED, NO_WORD
from mtl.corpora.readers import FORMATS, format_of, format_text, read_sentences
from mtl.errors import InputError
from mtl.tasks.sentence import Span

ANN = (("Ann", "Lee", "left"), (Span(0, 2, "PER"),))
LAYOUTS = {
    "uner": (
        "# sent_id = s1\n# text = Ann\n1\tAnn\tB-PER\t-\tme\n2\tLee\tI-PER\t-\tme\n3\tleft\tO\t-\tme\n",
        "s1",
    ),
    "conll2003:word=2,entity=3": (
        "#\thttp://x.de/y\t[2009-10-17]\n1\tAnn\tB-PER\tO\n2\tLee\tI-PER\tB-LOC\n3\tleft\tO\tO\n",
        "",
    ),
    "conll2003:word=2,entity=4": (
        "1\tAnn\tO\tB-PER\n2\tLee\tB-LOC\tI-PER\n3\tleft\tO\tO\n",
        "",
    ),
    "conll2003:entity=2": (
        "Ann\tB-PER\tO\nLee\tI-PER\tO\nleft\tO\tO\tnote\n",
        "",
    ),
    "conll2003:word=3,entity=1": (
        "B-PER\tx\tAnn\nI-PER\tx\tLee\nO\tx\tleft\n",
        "",
    ),
    "conll2003": (
        "\n# id 5239d808-f300 domain=en\nAnn _ _ B-PER\nLee _ _ I-PER\nleft _ _ O\n\n",
        "5239d808-f300",
    ),
    "conll2003-iob2": (
        "# id 5239d808\tdomain=en\nAnn _ _ B-PER\nLee _ _ I-PER\nleft _ _ O\n",
        "5239d808",
    ),
    "conll2003:word=1": (
        "-DOCSTART- -DOCSTART- O\nAnn N B-PER\nLee N I-PER\nleft V O\n-DOCSTART- -DOCSTART- O\n",
        "",
    ),
    "conll2003-iob1": (
        "-DOCSTART- -X- O O\n\nAnn NNP I-NP I-PER\nLee NNP I-NP I-PER\nleft VBD I-VP O\n",
        "",
    ),
    "conll2003-iobes": (
        "Ann B-PER\nLee E-PER\nleft O\n",
        "",
    ),
    "conll2003:tag=3": (
        "-DOCSTART- -X- -X- -X- O\n\nAnn Ann NE I-NC B-PER\nLee Lee NE I-NC I-PER\nleft x VV I-VC O\n",
        "",
    ),
    "conll2003-lenient": (
        "Ann I-PER\nLee I-PER\nleft O\n",
        "",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_layouts_of_entities(name: str, end: str, tmp_path: Path) -> None:
    text, named = LAYOUTS[name]
    path = tmp_path / "a.iob2"
    path.write_bytes((text + "\n" + text.replace("s1", "s2")).replace("\n", end).encode())
    sentences = read_sentences(path, name)
    assert [(sentence.words, sentence.entities) for sentence in sentences] == [ANN, ANN]
    assert sentences[0].id == (named or "a-0001")


def test_repairs_are_as_conlleval_takes_them_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("a I-X\nb I-Y\nc O\nd I-Y\ne B-Y\nf I-Y\n\ng B-X\nh B-X\n\ni B-X\nj O\nk B-X\n")
    first, second, third = read_sentences(path, "conll2003-lenient")
    assert first.entities == (Span(0, 1, "X"), Span(1, 2, "Y"), Span(3, 4, "Y"), Span(4, 6, "Y"))
    assert (len(first.notes), second.notes, third.notes) == (3, (), ())
    with pytest.raises(InputError, match=r"a\.conll:1: 'I-X' begins an entity"):
        read_sentences(path, "conll2003")
    path.write_text("a E-X\nb B-X\nc O\nd S-X\n")
    (sentence,) = read_sentences(path, "conll2003-lenient")
    assert sentence.entities == (Span(0, 1, "X"), Span(1, 2, "X"), Span(3, 4, "X"))
    assert len(sentence.notes) == 2


ROW = "{0}\t{1}\t_\tX\t{2}\t_\t{3}\troot\t_\t{4}\n"


def test_columns_of_conllu_plus_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.cupt"
    path.write_text(
        "# global.columns = ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC PARSEME:MWE\n"
        "# source_sent_id = x\n1\ttake\t_\tVERB\tV\t_\t0\troot\t_\t_\t1:VID\n"
        "2\tit\t_\tPRON\tP\t_\t1\tobj\t_\t_\t*\n\n"
        "# sent_id = b\n1\tGo\t_\tVERB\tV\t_\t0\troot\t_\t_\t*\n"
    )
    first, second = read_sentences(path, "conllu")
    assert (first.words, first.tags, first.upos) == (("take", "it"), ("V", "P"), ("VERB", "PRON"))
    assert first.arcs.heads == (0, 1)
    assert second.id == "b"
    path.write_text("# global.columns = FORM NE\nAnn\tB-PER\nleft\tO\n\nGo\tO\n")
    assert [s.entities for s in read_sentences(path, "conllu:entities=NE")] == [(Span(0, 1, "PER"),), ()]
    (ann, _) = read_sentences(path, "conllu")
    assert (ann.words, ann.tags, ann.arcs, ann.entities) == (("Ann", "left"), None, None, None)
    path.write_text("# global.columns = ID LEMMA\n1\tgo\n")
    with pytest.raises(InputError, match=r"a\.cupt:1: the columns must have FORM"):
        read_sentences(path, "conllu")
    path.write_text("# global.columns = ID FORM\n1\tgo\tx\n")
    with pytest.raises(InputError, match=r"a\.cupt:2: 3 columns; CoNLL-U has 2"):
        read_sentences(path, "conllu")

    path.write_text("# global.columns = ID FORM\n1\tgo\n\n# global.columns = FORM ID\ngo\t1\n")
    with pytest.raises(InputError, match=r"a\.cupt:4: other columns than"):
        read_sentences(path, "conllu")
    path.write_text("# global.columns = ID FORM\n1\tgo\n\n" * 2)
    assert len(read_sentences(path, "conllu")) == 2


def test_a_path_that_is_there_is_no_format_and_no_options(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for source, name, format in (
        ("conll2003:x", "conll2003:x", "conllu"),
        ("conllu:roots=attach:x", "roots=attach:x", None),
        ("conllu:roots=attach:x", "x", None),
    ):
        (tmp_path / name).write_text("1\tGo" + "\t_" * 8 + "\n")
        convert_corpus({"train": [source]}, tmp_path / "out", format, overwrite=True)
        (tmp_path / name).unlink()


def test_options_and_paths_may_hold_colons(tmp_path: Path) -> None:
    path = tmp_path / "a:b.cupt"
    path.write_text("# global.columns = ID FORM PARSEME:NE\n1\tAnn\tB-PER\n")
    for source in (f"conllu:entities=PARSEME:NE:{path}", f"conllu:{path}"):
        convert_corpus({"train": [source]}, tmp_path / "out", overwrite=True)
        entities = read_sentences(tmp_path / "out", "jsonl")[0].entities
        assert entities == ((Span(0, 1, "PER"),) if "=" in source else None)
    with pytest.raises(InputError, match=f"{tmp_path}/none: no such file"):
        convert_corpus({"train": [f"conllu:entities=NE:{tmp_path}/none"]}, tmp_path / "out", overwrite=True)


def test_multiword_ranges_and_empty_nodes_are_no_words_where_words_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "a.iob2"
    rows = "1-2\tal\tO\n1\ta\tO\n2\tel\tB-LOC\n2.1\te\t_\n"
    path.write_text(f"{rows}\n1\tRoma\tO\n")
    for name in ("uner", "conll2003:word=2,entity=3"):
        assert [sentence.words for sentence in read_sentences(path, name)] == [("a", "el"), ("Roma",)]
    path.write_text("1-1 a O\n1-2 b O\n\n2-1 c O\n")  # of sentence and word
    assert [len(sentence) for sentence in read_sentences(path, "conll2003:word=2,entity=3")] == [2, 1]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Word\tTag\nAnn\tB-PER\nleft\tO\n", r"1: 'Tag' .*is the first line a header\?"),
        ("token ner\n\nAnn B-PER\nleft O\n", r"1: 'ner' .*is the first line a header\?"),
        ("B-PER Ann\nO left\n", r"1: 'Ann' .*column 1 has tags: .*word: 2, entity: 1"),
        ("Ann\tB-PER\t0\nleft\tO\t4\n", r"1: '0' .*column 2 has tags: .*word: 1, entity: 2"),
        ("Ann\tB-PER\t\nleft\tO\t\n", r"1: '' .*column 2 has tags: "),
        ("Ann PER\nleft O\n", r"1: 'PER' .*declare its scheme"),
        ("#of one: x y\nAnn B-PER\n", r"2: 2 columns, .*if line 1 is a comment, begin it with '# '"),
    ],
)
def test_what_is_wrong_is_named_and_not_the_scheme(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(text)
    with pytest.raises(InputError, match=what):
        read_sentences(path, "conll2003")


@pytest.mark.parametrize("header", ["FORM\tUPOS", "token tag", "Word\tlemma\tLabel"])
def test_a_header_is_no_row_of_labels(header: str, tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(f"{header}\n{header.lower()}\n\n{header}\n")
    with pytest.raises(
        InputError, match=r"a\.conll:1: '(\w+)' and '(\w+)' name the columns: take the header out"
    ):
        read_sentences(path, "columns")


@pytest.mark.parametrize("gap", ["\t", " "])
def test_rows_of_labels_may_all_begin_with_the_sign_of_comments(gap: str, tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(f"# sent_id = s\n#{gap}NN\n#a=b{gap}X\n")
    (sentence,) = read_sentences(path, "columns")
    assert (sentence.id, sentence.words, sentence.tags) == ("s", ("#", "#a=b"), ("NN", "X"))
    path.write_text("# id 7\tNN\n#a=b\tX\n")
    assert read_sentences(path, "columns")[0].words == ("# id 7", "#a=b")


NUMBERED = {
    "uner": "{n}\t{word}\tO\t-\tx\n",
    "conll2003:word=2,entity=3": "{n} {word} O\n",
    "conll2012": "d 0 {n} {word} NN - - - - - *\n",
}


@pytest.mark.parametrize("name", NUMBERED)
def test_a_blank_line_that_is_missing_is_seen_by_the_words_numbers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    first, second = (
        "".join(NUMBERED[name].format(n=n, word=w) for n, w in enumerate(ws, 1)) for ws in ("ab", "cd")
    )
    path.write_text(f"{first}\n{second}")
    assert [sentence.words for sentence in read_sentences(path, name)] == [("a", "b"), ("c", "d")]
    path.write_text(first + second)
    with pytest.raises(InputError, match=r"a\.txt:3: word number '?1'? .*; put a blank line"):
        read_sentences(path, name)


def test_several_roots_by_choice(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(
        "".join(ROW.format(place, "w", "T", head, "_") for place, head in enumerate((2, 0, 0, 3, 0), 1))
    )
    with pytest.raises(InputError, match="3 roots, the first at words 2 and 3"):
        read_sentences(path, "conllu")
    (sentence,) = read_sentences(path, "conllu:roots=attach")
    assert sentence.arcs.heads == (2, 0, 2, 3, 2)
    assert sentence.notes == (ATTACHED, ATTACHED)


def test_entities_of_misc(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"

    def write(*sentences: list[str]) -> None:
        blocks = (
            "".join(ROW.format(n, "w", "T", n - 1, misc) for n, misc in enumerate(cells, 1))
            for cells in sentences
        )
        path.write_text("\n".join(blocks))

    write(["NER=B-X", "SpaceAfter=No|NER=I-X"], ["NER=O"], ["_"])
    assert [s.entities for s in read_sentences(path, "conllu")] == [(Span(0, 2, "X"),), (), None]
    write(["NER=B-X", "_"], ["_"])  # O is left out, as others write it
    assert [s.entities for s in read_sentences(path, "conllu")] == [(Span(0, 1, "X"),), ()]
    write(["NER=person", "_"])
    assert read_sentences(path, "conllu")[0].entities is None
    with pytest.raises(InputError, match=r"a\.conllu:1: 'person' is no"):
        read_sentences(path, "conllu:entities=NER")
    write(["NER=B-X", "SpaceAfter=No | NER=I-X"])
    assert read_sentences(path, "conllu")[0].entities == (Span(0, 2, "X"),)
    for misc, number in (("_", 2), ("NER=B-X", 2), ("NER=O", 2)):  # of what is no word: counted
        write([misc])
        others = "1-1\t" + "\t".join("_" * 8) + "\tNER=B-X\n", "1.1\t" + "\t".join("_" * 8) + "\tNER=B-X\n"
        path.write_text(path.read_text().join(others))
        (sentence,) = read_sentences(path, "conllu")
        assert sentence.notes.count(NO_WORD) == number
    write(["NE=S-X", "NE=O"])
    assert read_sentences(path, "conllu:entities=NE")[0].entities == (Span(0, 1, "X"),)
    (bare,) = read_sentences(path, "conllu")
    assert bare.notes == ("tag of an entity under 'NE', which is not read: entities=NE reads it",)
    write(["NE=S-X|Ref=A-1", "NE=O|Type=B-52s", "NE=other"])
    assert read_sentences(path, "conllu")[0].notes == (
        "tag of an entity under 'Type', which is not read: entities=Type reads it",
    )
    path.write_text("# global.columns = ID FORM MWE NE\n1\tAnn\t1:VID\tB-X\n2\tLee\t*\tI-X\n3\tleft\t*\t_\n")
    assert (
        read_sentences(path, "conllu")[0].notes
        == ("tag of an entity under 'NE', which is not read: entities=NE reads it",) * 2
    )
    write(["NE=S-X"])
    with pytest.raises(InputError, match="no word has 'Entity'"):
        read_sentences(path, "conllu:entities=Entity")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("conll2003:word=0", "counted from 1"),
        ("conll2003:word=x", "counted from 1"),
        ("conll2003:word=-1", "counted from 1"),
        ("conll2003:words=1", "'words=1': the format conll2003 has word=COLUMN, entity=COLUMN, tag=COLUMN"),
        ("brackets:arcs=ud", "arcs=collins"),
        ("conll2003:word=1,word=2", "once"),
        ("conll2003:word=2,entity=2", "one column cannot be word and entity"),
        ("conllu:roots=keep", "roots=refuse|attach"),
        ("conllu:", "''"),
        ("jsonl:word=1", "has no columns or options"),
        ("uner:word=1", "has no columns or options"),
        ("conll203:word=1", "did you mean 'conll2003'"),
    ],
)
def test_wrong_options_are_named(name: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        format_of(name)
    assert message in str(error.value)


def test_descriptions_are_read_back() -> None:
    for name, form in FORMATS.items():
        roles = {role: place for place, role in enumerate(form.roles, start=1)}
        text = format_text(name, roles, "attach" if "roots" in form.options else "refuse")
        of_sentence = ("classify",) if "sentence" in form.roles else ()
        assert format_of(text).layers == (*form.layers, *of_sentence)
    assert format_text("conllu", {}, "attach", "NE") == "conllu:roots=attach,entities=NE"
    assert "entities" in format_of("conllu:entities=NE").layers
    assert format_text("columns:comment=intent", {"word": 2}) == "columns:comment=intent,word=2"
    for name in ("conll2003:comment=intent", "columns:sentence=3", "conllu:comment=intent"):
        assert "classify" in format_of(name).layers
    assert "arcs" in format_of("conll2012:arcs=collins").layers


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if "word" in form.roles])
@pytest.mark.parametrize("width", [2, 3])
def test_no_column_has_two_roles(tmp_path: Path, name: str, width: int) -> None:
    """Also if one of the two is the default, the first or the last column."""
    path = tmp_path / "a.txt"
    path.write_text("O\t" * (width - 1) + "O\n")
    roles = FORMATS[name].roles
    for role, column in product(roles, range(1, width + 1)):
        columns = {"word": 1, next(other for other in roles if other != "word"): width, role: column}
        if len(set(columns.values())) == len(columns):
            assert list(format_of(f"{name}:{role}={column}").read(path))
        else:
            with pytest.raises(InputError, match=r"a\.txt:1: .* both column \d; name the columns"):
                list(format_of(f"{name}:{role}={column}").read(path))


INTENTS = {
    "conll2003:word=2,entity=4,comment=intent": "# x\n# intent: {}\n1\twake\t{}\tO\n2\tme\t{}\tB-X\n\n",
    "conll2003:comment=intent": "# intent = {}\nwake a {} O\nme b {} B-X\n\n",
    "conll2003:word=2,entity=4,sentence=3": "1\twake\t{}\tO\n2\tme\t{}\tB-X\n\n",
    "columns:comment=intent": "# intent = {}\nwake a b O\nme b c B-X\n\n",  # as many columns as the rows
    "columns:sentence=3": "wake a {} O\nme b _ B-X\n\n",
    "conllu:comment=intent": "# label intent = {}\n1\twake" + "\t_" * 8 + "\n2\tme" + "\t_" * 8 + "\n\n",
}


@pytest.mark.parametrize("name", INTENTS)
def test_a_label_of_each_sentence(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.conll"
    form = INTENTS[name]
    path.write_text("".join(form.replace("{}", label) for label in ("alarm/set", "stop")))
    sentences = list(format_of(name).read(path))
    assert [each.layer("classify") for each in sentences] == ["alarm/set", "stop"]
    assert all(each.words == ("wake", "me") for each in sentences)
    if "entity" in name or name.startswith("conll2003"):
        assert sentences[0].entities == (Span(1, 2, "X"),)
    without = "\n".join(line for line in path.read_text().split("\n") if "intent" not in line)
    if "comment" in name:  # without one, a sentence has no label; in no sentence, it is an error
        path.write_text(without + form.replace("{}", "stop"))
        assert [each.layer("classify") for each in format_of(name).read(path)] == [None, None, "stop"]
        path.write_text(without)
        with pytest.raises(InputError, match=r"no sentence has a comment '# intent = LABEL'; check its name"):
            list(format_of(name).read(path))
        path.write_text(form.replace("{}", "set alarm"))
        with pytest.raises(InputError, match=r"a.conll:\d: the sentence's label: .*one word"):
            list(format_of(name).read(path))


def test_a_label_of_each_sentence_of_words_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("# intent = alarm\nwake\nme\n\n# intent = stop\n#\n")
    first, second = format_of("columns:comment=intent").read(path)
    assert (first.words, first.layer("classify"), first.tags) == (("wake", "me"), "alarm", None)
    assert (second.words, second.layer("classify")) == (("#",), "stop")
    other = tmp_path / "b.txt"
    other.write_text("# intent = alarm\nwake,O\nme,O\n")
    with pytest.raises(InputError, match=r"b.txt:2: separate the columns by spaces or tabs"):
        list(format_of("columns:comment=intent").read(other))
    with pytest.raises(InputError, match=r"a.txt:2: 1 column, where 2 are expected; write a label behind"):
        list(format_of("columns").read(path))


def test_a_column_with_several_labels_of_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("wake a on O\nme b off O\n")
    for name in ("columns:sentence=3", "conll2003:sentence=3"):
        with pytest.raises(InputError, match=r"a.conll:2: 'off' and, in line 1, 'on' are labels of one"):
            list(format_of(name).read(path))
