"""Patterns in paths: which names are patterns, and what they find."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
from pathlib import Path

import pytest

from mtl.corpora.folder import convert_corpus
from mtl.corpora.formats.jsonl import write_jsonl
from mtl.corpora.formats.lines import iterate_lines, no_text, read_lines
from mtl.corpora.readers import FORMATS, files, matching, read_sentences
from mtl.errors import InputError
from mtl.tasks.catalogue import SENTENCE_TASKS
from mtl.tasks.sentence import Sentence

SAMPLES = {
    "jsonl": ("a.jsonl", '{"words": ["Go", "!"]}\n'),
    "conllu": (
        "a.conllu",
        "1\tGo\tgo\tVERB\tVB\tMood=Imp\t0\troot\t_\t_\n2\t!\t!\tPUNCT\t.\t_\t1\tpunct\t_\t_\n",
    ),
    "conll2012": ("a.v4_gold_conll", "d 0 0 Go VB (TOP(S* - - - - * -\nd 0 1 ! . *)) - - - - * -\n"),
    "conll2003": ("a.conll", "Go VB O\n! . O\n"),
    "columns": ("a.conll", "Go VB\n! .\n"),
    "uner": ("a.iob2", "1\tGo\tO\t-\tme\n2\t!\tO\t-\tme\n"),
    "brackets": ("a.mrg", "(TOP (S (VB Go) (. !)))\n"),
    "conll2005": ("a.props", "Go go (V*)\n! - *\n"),
    "sdp": ("a.sdp", "#x\n1\tGo\tgo\tVB\t+\t-\n2\t!\t!\t.\t-\t-\n"),
    "json-entities": ("a.json", '{"tokens": ["Go", "!"], "entities": []}\n'),
    **{
        f"glue-{name}": (
            "a.tsv",
            "sentence\tsentence1\tsentence2\tlabel\n"
            f"Go !\tGo\t!\t{(*getattr(task, 'inventory', ()), '1.5')[0]}\n",
        )
        for name, task in SENTENCE_TASKS.items()
    },
}
LAYERS = {
    "jsonl": set(),
    "conllu": {"tags", "upos", "lemmas", "feats", "arcs"},
    "conll2012": {"tags", "tree", "entities", "frames"},
    "conll2003": {"entities"},
    "columns": {"tags"},
    "uner": {"entities"},
    "brackets": {"tags", "tree"},
    "conll2005": {"frames"},
    "sdp": {"tags", "lemmas", "deps"},
    "json-entities": {"entities"},
    **{f"glue-{name}": {name} for name in SENTENCE_TASKS},
}


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.patterns and name != "glue"])
def test_files_folders_and_globs(tmp_path, monkeypatch, name):
    sample = name if name in SAMPLES else name.partition("-")[0]
    file, text = SAMPLES[sample]
    for folder in ("x", "y/z"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / file).write_text(text)
        (tmp_path / folder / "README").write_text("not a corpus")
    (one,) = read_sentences(tmp_path / "x" / file, name)
    assert one.words == ("Go", "!")
    annotated = set(one.layers)
    assert annotated == LAYERS[sample]
    assert sample == "jsonl" or set(FORMATS[name].layers) == annotated
    assert read_sentences(tmp_path, name) == [one, one]
    assert files(tmp_path, name) == [tmp_path / "x" / file, tmp_path / "y/z" / file]
    assert read_sentences(str(tmp_path / "*" / file), name) == [one]
    assert read_sentences(str(tmp_path / "**" / file), name) == [one, one]
    monkeypatch.chdir(tmp_path)
    assert read_sentences(f"x/{file[0]}*", name) == [one]


@pytest.mark.parametrize("name", SAMPLES)
def test_odd_names_of_files_are_no_fault_of_what_is_in_them(tmp_path, name):
    file, text = SAMPLES[name]
    for odd in ("a\nb\t[1]", os.fsdecode(b"caf\xe9"), "#?%*'\" "):
        path = tmp_path / odd / f"{odd}{Path(file).suffix}"
        path.parent.mkdir()
        path.write_text(text)
        for place in (path, path.parent):
            (one,) = read_sentences(place, name)
            write_jsonl(tmp_path / "out.jsonl", [one])
            assert read_sentences(tmp_path / "out.jsonl", "jsonl")[0].id == one.id, place


def test_files_of_a_folder_are_read_once_and_hidden_ones_not(tmp_path):
    folder = tmp_path / ".x"
    for name in ("b.jsonl", ".ipynb_checkpoints/b-checkpoint.jsonl", "._b.jsonl", "y/a.jsonl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}" if "._" in name else '{"words": ["Go"]}\n')
    (folder / "c.jsonl").symlink_to("b.jsonl")
    assert files(folder, "jsonl") == [folder / "b.jsonl", folder / "y" / "a.jsonl"]
    assert files(f"{folder}/[bc].jsonl", "jsonl") == [folder / "b.jsonl"]
    assert files(f"{folder}/**/*.jsonl", "jsonl") == files(folder, "jsonl")
    assert files(f"{folder}/.*/b*", "jsonl") == [folder / ".ipynb_checkpoints" / "b-checkpoint.jsonl"]
    assert len(read_sentences(folder, "jsonl")) == 2


def test_folders_behind_links_are_read_and_those_without_end_once(tmp_path):
    """Python's own `rglob` leaves them out silently."""
    for name in ("corpus/a/1.jsonl", "elsewhere/b/2.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text('{"words": ["Go"]}\n')
    folder = tmp_path / "corpus"
    (folder / "linked").symlink_to("../elsewhere")
    (folder / "again").symlink_to("a")
    (folder / "a" / "up").symlink_to("..")
    found = [folder / "a" / "1.jsonl", folder / "linked" / "b" / "2.jsonl"]
    for place in (folder, f"{folder}/**/*.jsonl"):
        assert [file.resolve() for file in files(place, "jsonl")] == [file.resolve() for file in found]
        assert len(read_sentences(place, "jsonl")) == 2


def test_declared_variants(tmp_path):
    (tmp_path / "a.conllu").write_text(SAMPLES["conllu"][1])
    assert read_sentences(tmp_path, "conllu")[0].tags == ("VB", ".")
    assert read_sentences(tmp_path, "conllu-upos")[0].tags == ("VERB", "PUNCT")
    (tmp_path / "a.conll").write_text("Go I-X\n")
    assert len(read_sentences(tmp_path, "conll2003-iob1")) == 1
    with pytest.raises(InputError, match="IOB2 writes B-"):
        read_sentences(tmp_path, "conll2003-iob2")
    (tmp_path / "a.mrg").write_text("(TOP (S-IMP (VB Go)))")
    assert str(read_sentences(tmp_path, "brackets")[0].tree) == "(TOP (S (VB Go)))"
    assert str(read_sentences(tmp_path, "brackets-verbatim")[0].tree) == "(TOP (S-IMP (VB Go)))"


def test_an_empty_path_is_not_the_current_folder(tmp_path, monkeypatch):
    """Which a variable of the shell that is not set makes: `--train=conllu:$FILE`."""
    (tmp_path / "a.jsonl").write_text('{"words": ["a"]}\n')
    monkeypatch.chdir(tmp_path)
    assert files(".", "jsonl") == [Path("a.jsonl")]
    with pytest.raises(InputError, match="an empty path, where files of format jsonl are named"):
        files("", "jsonl")
    with pytest.raises(InputError, match="an empty path"):
        convert_corpus({"train": ["jsonl:"]}, tmp_path / "out")


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="unknown format 'conlu': did you mean 'conllu'"):
        read_sentences(tmp_path, "conlu")
    with pytest.raises(InputError, match=r"no \*\.jsonl in this folder"):
        read_sentences(tmp_path, "jsonl")
    with pytest.raises(InputError, match="no such file"):
        read_sentences(tmp_path / "none.jsonl", "jsonl")
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(InputError, match="no sentence in it"):
        read_sentences(tmp_path, "jsonl")
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(InputError, match="a pipe or a device"):
            read_sentences(place, "jsonl")


TEXT = "Ann B-PER\nleft O\n\n" * 9
NO_TEXT = {
    "gzip": gzip.compress(TEXT.encode()),
    "bzip2": bz2.compress(TEXT.encode()),
    "xz": lzma.compress(TEXT.encode()),
    "zip": b"PK\x03\x04\x14" + bytes(40),
    "Parquet": b"PAR1\x15\x04" + bytes(range(99)),
    "PDF": b"%PDF-1.7\n%\xe2\xe3",
    "UTF-16": TEXT.encode("utf-16"),
    "UTF-16:": TEXT.encode("utf-16-le"),
    "UTF-16: ": TEXT.encode("utf-16-be"),
    "UTF-32": TEXT.encode("utf-32"),
}


@pytest.mark.parametrize("format", sorted({*FORMATS} - {"glue", "parallel"}))
def test_files_that_are_no_text_are_named(format, tmp_path):
    path, said = tmp_path / "a.txt", {}
    for name, content in NO_TEXT.items():
        path.write_bytes(content)
        try:
            read_sentences(path, format)
        except InputError as error:
            said[name] = str(error)
    assert said.keys() == NO_TEXT.keys()
    assert [name for name, message in said.items() if not re.search(rf"a\.txt: .*{name}", message)] == []


def test_text_may_begin_like_what_is_no_text(tmp_path):
    for text in ("PAR1 O\n", "PK O\n", "BZh O\n", "%PDF O\n", "(\x00 O\n"):
        assert no_text(text.encode()) is None


def test_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("a\u2028b\r\nc\n".encode())
    assert read_lines(path) == ["a\u2028b", "c", ""]
    path.write_bytes(b"\xef\xbb\xbfa\n\xff\n")
    with pytest.raises(InputError, match=r"a\.txt:2: not UTF-8"):
        read_lines(path)
    with pytest.raises(InputError, match="No such file"):
        read_lines(tmp_path / "none")
    lines = iterate_lines(path)
    assert next(lines) == "a"
    with pytest.raises(InputError, match=r"a\.txt:2: not UTF-8"):
        next(lines)
    path.write_bytes(gzip.compress(b"a\n"))
    with pytest.raises(InputError, match=r"a\.txt: compressed by gzip: unpack it"):
        read_lines(path)
    with pytest.raises(InputError, match=r"a\.txt: compressed by gzip: unpack it"):
        next(iterate_lines(path))
    with pytest.raises(InputError, match="No such file"):
        next(iterate_lines(tmp_path / "none"))
    path.write_bytes(b"\xef\xbb\xbfa\xe2\x80\xa8b\r\n\n\xef\xbb\xbfc\xef\xbb\xbfd\r\r\n")
    assert [*iterate_lines(path), ""] == read_lines(path) == ["a\u2028b", "", "c\ufeffd", ""]
    path.write_bytes(b"a\nc\rd\n")
    for reader in (read_lines, lambda path: list(iterate_lines(path))):
        with pytest.raises(InputError, match=r"a\.txt:2: a carriage return within the line"):
            reader(path)
    write_jsonl(path, [Sentence(("é",))])
    assert "é" in path.read_text(encoding="utf-8")


def test_a_part_of_a_path_is_a_pattern_only_where_nothing_has_that_name(tmp_path):
    for name in ("lr1", "lr[1]", "lr2", "a [x]/b1", "a [x]/b[1]", "a x/b1"):
        (tmp_path / name).mkdir(parents=True)

    def found(pattern: str) -> list[str]:
        return [path.relative_to(tmp_path).as_posix() for path in matching(tmp_path / pattern)]

    assert found("lr[1]") == ["lr[1]"]
    assert found("lr[12]") == ["lr1", "lr2"]
    assert found("a [x]/b*") == ["a [x]/b1", "a [x]/b[1]"]
    assert found("a [x]/b[1]") == ["a [x]/b[1]"]
    assert found("a [y]/b1") == found("a**") == []
    assert found("**/b1") == ["a [x]/b1", "a x/b1"]
