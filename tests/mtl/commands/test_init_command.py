"""`mtl init`: a configuration for files of every format that trains unchanged, and notes on oddities."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mtl.commands.main import main
from mtl.config.parse import read_configuration
from mtl.config.schema import TrainConfig
from mtl.corpora.at_hand import _place
from mtl.corpora.readers import FORMATS
from mtl.runs.folder.run_tables import read_measures

CONLLU = """\
1\tWe\twe\tPRON\tPRP\tCase=Nom\t2\tnsubj\t2:nsubj\t_
2\tate\teat\tVERB\tVBD\tTense=Past\t0\troot\t0:root\t_
3\tpizza\tpizza\tNOUN\tNN\tNumber=Sing\t2\tobj\t2:obj\t_

1\tShe\tshe\tPRON\tPRP\tCase=Nom\t2\tnsubj\t2:nsubj\t_
2\tsleeps\tsleep\tVERB\tVBZ\tTense=Pres\t0\troot\t0:root\t_

"""
TWO_ROOTS = re.sub(r"\t[0-9]:[a-z]+", "\t_", CONLLU.replace("2\tobj", "0\tobj"))
NER = "Ann O\n{} B-{}\n\nWe O\nate O\n\n"
NUMBERED = "1\tAnn\t{}\ta\n2\tate\tO\t-\ta\n\n1\tHe\tO\t-\ta\n2\tate\tO\t-\ta\n\n"
TREES = "(S (NP (PRP We)) (VP (VBD ate)))\n(S (NP (PRP He)) (VP (VBD slept)))\n"
CONLL2012 = """\
#begin document (a); part 000
a 0 0 We PRP (TOP(S(NP*) - - - - * (ARG0*) (PER)
a 0 1 ate VBD (VP*) eat 01 - - * (V*) -
a 0 2 . . *)) - - - - * * -

#end document
"""
JSON = {
    "words": ["wake", "me", "six"], "tags": ["VB", "PRP", "CD"], "labels": {"intent": "alarm"},
    "layers": {"slots": [[2, 3, "TIME"]], "shape 1": ["x", "y", "x"], "pairs": ["a", "b", "a"]},
}  # fmt: skip
SDP = "#SDP 2015\n#1\n1\tWe\twe\tPRP\t-\t-\t_\tACT\n2\tate\teat\tVBD\t+\t+\tv:1\t_\n\n"
SPACY = json.dumps({"text": "We ate in Rome.", "entities": [[10, 14, "LOC"]]}) + "\n"
OTHER = {**JSON, "words": ["call", "me", "now"], "labels": {"intent": "call"}}
CORPORA = {
    "jsonl": ("{}.jsonl", f"{json.dumps(JSON)}\n{json.dumps(OTHER)}\n", "pos intent pairs_2 shape_1 slots"),
    "conllu": ("en-ud-{}.conllu", CONLLU, "upos pos dep deps feats lemmas"),
    "conllu:roots=attach": ("{}.conllu", TWO_ROOTS, "upos pos dep feats lemmas"),
    "conll2012": ("{}/a.gold_conll", CONLL2012, "pos con srl"),
    "conll2003": ("eng.{}.txt", NER.format("Rome", "LOC") + NER.format("Bonn", "LOC"), "ner"),
    "conll2003:comment=act": (
        "{}.txt",
        "# id a1\n# act = ask\nAnn B-PER\nate O\n\n# id a2\n# act = tell\nWe O\nate O\n\n",
        "ner act",
    ),
    "columns:comment=act": ("{}.txt", "# act = ask\nAnn\nate\n\n# act = tell\nWe\nate\n\n", "act"),
    "conllu:comment=genre": (
        "{}.conllu",
        "# genre = news\n" + CONLLU.replace("1\tShe", "# genre: mail\n1\tShe"),
        "upos pos dep deps feats lemmas genre",
    ),
    "conll2003-lenient": ("{}.txt", "Ann I-PER\nate O\nRome B-LOC\n\nWe O\n\n", "ner"),
    "uner": ("{}.iob2", NUMBERED.format("B-PER\t-"), "ner"),
    "conll2003:word=2,entity=3": ("{}.tsv", NUMBERED.format("S-PER\tO"), "ner"),
    "columns": ("shape/{}.txt", "We X\nate y\n\nBob X\nsleeps y\n\n", "shape"),
    "brackets": ("{}/a.mrg", TREES, "pos con"),
    "conll2005": ("{}.props", "We - (A0*)\nate eat (V*)\n\n", "srl"),
    "sdp": ("{}.sdp", SDP, "pos lemmas deps senses"),
    "json-entities": ("{}.jsonl", SPACY, "ner"),
    "glue-cola": ("CoLA/{}.tsv", "g\t1\t\tWe ate.\ng\t0\t*\tAte we.\n", "cola"),
    "glue-classify": ("intent/{}.tsv", "text\tlabel\nwake me\talarm\ncall Ann\tcall\n", "intent"),
    "glue-regress": ("{}.tsv", "text\tlabel\nwake me\t0.5\ncall Ann\t1.25\n", "mine"),
}  # fmt: skip
NEVER_FOUND = {
    "conllu-upos", "conll2003-iob1", "conll2003-iob2", "conll2003-iobes", "brackets-verbatim", "parallel",
    "glue", *(name for name in FORMATS if name.startswith("glue-")),
}  # fmt: skip
"""Formats that are not chosen: other variants, tasks of GLUE, and translations, which train alone."""


def write(folder: Path, name: str, text: str) -> Path:
    for split in ("train", "dev", "test"):
        path = folder / name.format(split)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.suffix == ".props":
            path.with_suffix(".words").write_text("We\nate\n\n")
    return folder


def test_every_format_has_a_corpus_here():
    assert {name.partition(":")[0] for name in CORPORA} | NEVER_FOUND == {*FORMATS}


@pytest.mark.parametrize(
    "format",
    [
        format if format in ("conllu", "jsonl") else pytest.param(format, marks=pytest.mark.slow)
        for format in CORPORA
    ],
)
def test_the_written_configuration_trains_as_it_is(format, tmp_path, tiny_encoder, monkeypatch, capsys):
    name, text, tasks = CORPORA[format]
    folder = write(tmp_path / "mine", name, text)
    monkeypatch.chdir(tmp_path)
    assert main(["init", folder.name]) == 0, capsys.readouterr().err
    assert f"# {format.partition(':')[0]}" in Path("config.yaml").read_text()
    assert sorted(read_configuration(TrainConfig, Path("config.yaml")).tasks) == sorted(tasks.split())
    trains("config.yaml", tiny_encoder, capsys)


@pytest.mark.parametrize(
    ("comments", "task"),
    [
        (("# act = ask", "# act = tell"), "act"),
        (("# act = ask", "# act = ask"), ""),  # one class
        (("# act = ask", "# other = tell"), ""),  # not before every sentence
        (("# act = ask that", "# act = tell"), ""),  # no word
        (("# sent_id = {0}1", "# sent_id = {0}2"), ""),  # another for each sentence
    ],
)
def test_a_comment_is_a_class_if_all_sentences_have_one_of_few(comments, task, tmp_path, capsys):
    for split in ("train", "dev", "test"):
        first, second = (comment.format(split) for comment in comments)
        text = f"{first}\nAnn B-PER\nate O\n\n{second}\nWe O\nate O\n\n"
        path = tmp_path / "mine" / f"{split}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    config, _ = initialised(tmp_path / "mine", capsys)
    assert ("kind: class" in config, "act: {kind: class" in config) == (bool(task), task == "act")
    assert "ner: {}" in config


def trains(config: str, encoder: Path, capsys) -> None:
    words = [f"--encoder.name={encoder}", "--max_epochs=1", "--name=once"]
    assert main(["train", config, *words]) == 0, capsys.readouterr().err


def initialised(folder: Path, capsys, *words: str) -> tuple[str, str]:
    """The configuration that `mtl init` wrote, and what it printed."""
    assert main(["init", *(words or [str(folder)]), f"--out={folder}.yaml"]) == 0, capsys.readouterr().err
    return Path(f"{folder}.yaml").read_text(), capsys.readouterr().out


def test_heads_are_probed_on_files_of_the_written_configuration(tmp_path, tiny_encoder, monkeypatch, capsys):
    """The tasks share files, so that none has files of its own."""
    name, text, _ = CORPORA["conllu"]
    write(tmp_path / "mine", name, text)
    monkeypatch.chdir(tmp_path)
    initialised(tmp_path / "mine", capsys)
    trains("mine.yaml", tiny_encoder, capsys)
    assert main(["probe", "runs/once"]) == 0, capsys.readouterr().err
    heads, _ = read_measures(Path("runs/once/heads.parquet"))
    assert {*heads["task"]} - {None, ""} == {"pos", "dep", "upos", "feats", "lemmas", "deps"}
    assert main(["show", "runs/once", "L0H0", "--task=dep"]) == 0, capsys.readouterr().err


def test_a_column_of_words_may_begin_with_a_bracket(tmp_path, capsys):
    text, _ = initialised(
        write(tmp_path / "mine", "{}.txt", "( O\nAnn B-PER\n) O\n\nWe O\nate O\n\n"), capsys
    )
    assert "# conll2003" in text
    broken = write(tmp_path / "broken", "{}.txt", "(S (X a)\n")
    assert main(["init", str(broken), f"--out={tmp_path / 'b.yaml'}"]) == 2
    assert "train.txt:1: 1 bracket of the tree that starts here never closed" in capsys.readouterr().err


def test_corpora_side_by_side_have_names_of_their_own(tmp_path, tiny_encoder, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", "ner-{}.txt", NER.format("Rome", "LOC"))
    write(tmp_path / "a", "slots-{}.txt", NER.format("six", "TIME"))
    write(tmp_path / "a", "ud/{}.conllu", CONLLU)
    text, printed = initialised(tmp_path / "a", capsys)
    assert sorted(read_configuration(TrainConfig, tmp_path / "a.yaml").tasks) == sorted(
        ["ner", "slots", "upos", "pos", "dep", "deps", "feats", "lemmas"]
    )
    assert "# Note: test: 2 of 2 sentences in train, too" in text
    assert "test: 2 of 2 sentences in train, too" in printed
    trains("a.yaml", tiny_encoder, capsys)


def test_two_schemes_of_one_layer_are_named_after_their_files(tmp_path, capsys):
    write(tmp_path / "a", "fine/{}.txt", NUMBERED.format("B-PER\t-"))
    write(tmp_path / "a", "news/{}.txt", NER.format("Rome", "LOC"))
    initialised(tmp_path / "a", capsys)
    write(tmp_path / "b", "ud/{}.conllu", CONLLU)
    write(tmp_path / "b", "shape/{}.txt", "We X\nate y\n\nBob X\nsleeps y\n\n")
    initialised(tmp_path / "b", capsys)
    fine, news = read_configuration(TrainConfig, tmp_path / "a.yaml").tasks
    assert (fine, news) == ("fine", "news")
    assert {"shape", "pos"} < {*read_configuration(TrainConfig, tmp_path / "b.yaml").tasks}


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("eng.testa", "dev"), ("eng.testb", "test"), ("en_ewt-ud-Train.conllu", "train"), ("val.tsv", "dev"),
        ("development/a.mrg", "dev"), ("test/train.txt", "train"), ("validation_2.txt", "dev"),
        ("latest.txt", None), ("value.txt", None), ("test/x/README.txt", None),
    ],
)  # fmt: skip
def test_names_say_the_split(path, split):
    place = _place(Path(path), Path(path).parent.parent)
    assert (place and place[0]) == split


def test_several_files_of_a_split_are_its_folder(tmp_path, capsys):
    for name in ("a", "b"):
        write(tmp_path / "wsj", f"{{}}/{name}.mrg", TREES)
    initialised(tmp_path / "wsj", capsys, *map(str, sorted((tmp_path / "wsj").glob("*/*.mrg"))))
    files = read_configuration(TrainConfig, tmp_path / "wsj.yaml").corpus.files
    assert [files.train, files.dev] == [str(tmp_path / "wsj" / split) for split in ("train", "dev")]


@pytest.mark.parametrize("split", ["train", "dev", "test"])
@pytest.mark.parametrize("milder", ["conllu:roots=attach", "conll2003-lenient"])
def test_what_any_of_the_files_needs_decides_the_format(milder, split, tmp_path, capsys):
    """Also if the first training file, which decides on the format, does not need it."""
    name, odd, _ = CORPORA[milder]
    _, text, _ = CORPORA[milder.partition(":")[0].removesuffix("-lenient")]
    folder = write(tmp_path / "a", f"{{}}/1{Path(name).suffix}", text)
    (folder / split / f"2{Path(name).suffix}").write_text(odd)
    written, printed = initialised(folder, capsys)
    assert f"# {milder}: " in written
    assert "dev stands in for it" not in printed
    files = read_configuration(TrainConfig, Path(f"{folder}.yaml")).corpus.files
    assert files.test != files.dev


def test_folders_behind_links_are_found(tmp_path, capsys):
    write(tmp_path / "stored", "of-{}/a.mrg", TREES)
    (tmp_path / "wsj").mkdir()
    for split in ("train", "dev", "test"):
        (tmp_path / "wsj" / split).symlink_to(f"../stored/of-{split}")
    initialised(tmp_path / "wsj", capsys)
    files = read_configuration(TrainConfig, tmp_path / "wsj.yaml").corpus.files
    assert [files.train, files.dev] == [str(tmp_path / "wsj" / split / "a.mrg") for split in ("train", "dev")]


def test_dev_stands_for_a_test_file_that_is_missing_or_without_labels(tmp_path, capsys):
    name, text, _ = CORPORA["glue-classify"]
    for folder, rest in (("a", None), ("b", "text\nwake me\n")):
        test = write(tmp_path / folder, name, text) / name.format("test")
        test.unlink() if rest is None else test.write_text(rest)
        written, printed = initialised(tmp_path / folder, capsys)
        assert "test: dev stands in for it: " in printed
        files = read_configuration(TrainConfig, tmp_path / f"{folder}.yaml").corpus.instances["intent"]
        assert files.test == files.dev == str(tmp_path / folder / name.format("dev"))
        assert "# Note: test: dev stands in for it" in written


def test_what_cannot_be_learned_is_left_out_with_a_note(tmp_path, capsys):
    folder = write(tmp_path / "a", "{}.jsonl", f"{json.dumps({**JSON, 'entities': []})}\n" * 2)
    dev = {key: value for key, value in JSON.items() if key != "labels"}
    (folder / "dev.jsonl").write_text(f"{json.dumps(dev)}\n")
    (folder / "README.txt").write_text("A corpus.\n")
    _, printed = initialised(folder, capsys)
    assert "entities: left out: no label in train" in printed
    assert "intent: left out: no dev sentence is annotated for it" in printed
    assert f"{folder / 'README.txt'}: left out: " in printed
    tasks = read_configuration(TrainConfig, Path(f"{folder}.yaml")).tasks
    assert "ner" not in tasks
    assert "intent" not in tasks


@pytest.mark.parametrize(
    "rows",
    [
        "r1\tgood\t5\tA lovely film.\nr2\tbad\t1\tNever again.\nr3\tmixed\t3\tIt was fine.\n",
        "r1\t1\t\tA lovely film.\nr2\t0\t\tNever again.\n",
        "A lovely film.\tgood\nNever again.\tbad\nFine.\tgood\n",
        "good\tA lovely film.\nbad\tNever again.\n",
    ],
)
def test_a_table_of_texts_without_a_header_is_no_corpus_of_another_kind(rows, tmp_path, capsys):
    """Neither CoLA's four columns, nor words with a label each, whose words would be whole texts."""
    write(tmp_path / "reviews", "{}.tsv", rows)
    assert main(["init", str(tmp_path / "reviews"), f"--out={tmp_path / 'c.yaml'}"]) == 2
    error = capsys.readouterr().err
    assert "train.tsv:1: no column of sentences for classify; name them" in error
    assert error.count("\n") == 1
    names = {" ": "text", "good": "label", "1": "label"}
    fields = [
        field if field in names else " " * (" " in field) for field in rows.partition("\n")[0].split("\t")
    ]
    head = "\t".join(names.get(field, f"column {number}") for number, field in enumerate(fields))
    write(tmp_path / "reviews", "{}.tsv", f"{head}\n{rows}")
    assert main(["init", str(tmp_path / "reviews"), f"--out={tmp_path / 'c.yaml'}"]) == 0


def test_long_sentences_of_dev_are_let_in(tmp_path, capsys):
    folder = write(tmp_path / "a", "{}.txt", "We X\n" * 600 + "\nate Y\nit Z\n\n")
    initialised(folder, capsys)
    assert read_configuration(TrainConfig, Path(f"{folder}.yaml")).batch.max_words == 600


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nothing"], "nothing: no such file or folder; check the path"),
        (["a/train.txt"], "a/train.txt: no files whose names say train and dev"),
        (["tables"], "tables: no files whose names say train and dev among *.bio, "),
        (["a", "--out=here.yaml"], "here.yaml exists: use another --out"),
        (["odd"], "odd/train.conllu:1: "),
        (["more"], "more: files of several splits or corpora: put those of each split into its own folder"),
    ],
)
def test_what_cannot_be_meant_is_one_line(names, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(Path("a"), "{}.txt", NER.format("Rome", "LOC"))
    write(Path("odd"), "{}.conllu", "no columns\n")
    write(Path("tables"), "{}.csv", "a,b\n")
    write(Path("more"), "{}.mrg", TREES)
    Path("more/training.mrg").write_text(TREES)
    Path("here.yaml").write_text("mine")
    code = main(["init", *names])
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith(f"mtl: {message}")
    assert error.count("\n") == 1
    assert Path("here.yaml").read_text() == "mine"
