"""Translations in two files: lines that belong together, empty ones, gzip, and faults."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mtl.config.schema import CorpusConfig, Files
from mtl.corpora.checks import CorpusCheck, notes_on
from mtl.corpora.folder import convert_corpus, corpus_stats
from mtl.corpora.load import corpus_at, corpus_fingerprint, kinds_of, load_split
from mtl.corpora.readers import read_sentences
from mtl.errors import InputError
from mtl.tasks.sentence import Sentence
from mtl.translation.command import _sentence as command_sentence
from mtl.translation.lines import source_sentence
from mtl.translation.task import Translate
from mtl.translation.two_files import read_parallel, two_paths


@pytest.fixture
def files(tmp_path):
    """Two files, the source compressed."""
    (tmp_path / "a.en.gz").write_bytes(gzip.compress(b"A  man .\r\n\r\nTwo dogs\n"))
    (tmp_path / "a.de").write_text("Ein  Mann .\nNichts\n\n", encoding="utf-8")
    return tmp_path / "a.en.gz", tmp_path / "a.de"


def test_lines_belong_together_and_empty_ones_are_kept_and_counted(files):
    sentences = read_sentences(f"{files[0]}:{files[1]}", "parallel")
    assert [sentence.words for sentence in sentences] == [("A", "man", "."), (), ("Two", "dogs")]
    assert [sentence.layer("translate") for sentence in sentences] == ["Ein  Mann .", "Nichts", ""]
    assert sentences[2].place == f"{files[0]}:3"
    empty = f"dev: 2 pairs have an empty line (the first, {files[0]}:2): scored as they are"
    assert [*Translate().notes({"dev": sentences})] == [empty]
    assert not [*Translate().notes({"dev": sentences[:1]})]
    assert [Translate().is_empty(sentence) for sentence in sentences] == [False, True, True]


LINES = st.lists(
    st.sampled_from(
        ["A", "man", " ", "\t", "\ufeff", "\u00a0", "\u2028", "\x85", "\x1f", "\x00", "é", "a\u200bb"]
    ),
    max_size=9,
).map("".join)  # fmt: skip


@given(line=LINES)
@example(line="\ufeffA man")
@example(line=" \ufeff A\x00\ufeff")
def test_a_line_has_the_same_words_in_files_in_mtl_translate_and_in_python(line):
    tokenizer = SimpleNamespace(encode_sentences=lambda sentences: None)
    skipped: list[str] = []
    from_command = command_sentence(line.encode(), "here", tokenizer, skipped)
    if not skipped:
        assert from_command.words == source_sentence(line, "here", tokenizer).words
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.en"
            path.write_text(f"{line}\n", encoding="utf-8")
            [from_file] = read_parallel(path, path)
        assert from_file.words == from_command.words


def test_what_is_converted_is_read_back(files, tmp_path):
    """This includes empty sides and blanks within a translation; training reads both in the same way."""
    both = f"{files[0]}:{files[1]}"
    convert_corpus({"train": [f"parallel:{both}"]}, tmp_path / "out")
    assert read_sentences(tmp_path / "out", "jsonl") == read_sentences(both, "parallel")
    assert corpus_stats(tmp_path / "out")["train"]["translate"] == {"sentences": 3, "translations": 3}
    config = CorpusConfig(str(tmp_path / "out"))
    assert load_split(config, ("translate",), "train") == read_sentences(both, "parallel")


@pytest.mark.parametrize("value", ["5", '"a\\u0007b"'])
def test_translations_that_are_no_text_are_refused(value, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"words": ["a"], "labels": {{"translate": {value}}}}}')
    with pytest.raises(
        InputError, match=r"a\.jsonl:1: the label of translate: .*(not a text|control character)"
    ):
        read_sentences(path, "jsonl")


def test_files_of_unequal_length_are_refused(files):
    files[1].write_text("Ein Mann .\n")
    with pytest.raises(InputError, match=r"a\.en\.gz has 3 lines and .*a\.de 1: use two files"):
        list(read_parallel(*files))


@pytest.mark.parametrize("paths", ["a.en", "a.en:", ":b", "a:b:c"])
def test_a_path_that_is_not_two_is_refused(paths):
    with pytest.raises(InputError, match="write them as SOURCE:TARGET"):
        two_paths(paths)


def test_damaged_files_are_named(files):
    with pytest.raises(InputError, match=r"gone\.en: no such file"):
        read_sentences(f"{files[0].parent / 'gone.en'}:{files[1]}", "parallel")
    files[1].write_bytes(b"Ein Mann\nM\xe4nner\n\n")
    with pytest.raises(InputError, match=r"a\.de:2: not UTF-8"):
        list(read_parallel(*files))
    data = files[0].read_bytes()
    for damaged in (data[:-9], data[:10] + b"\xff" + data[11:]):
        files[0].write_bytes(damaged)
        with pytest.raises(InputError, match="damaged gzip file"):
            list(read_parallel(*files))


def test_both_files_make_the_corpus_what_it_is(files):
    both = f"{files[0]}:{files[1]}"
    config = CorpusConfig(None, translate=Files(both, both, both, "parallel"))
    before = corpus_fingerprint(config, ("translate",))
    assert len(load_split(config, ("translate",), "dev")) == 3
    assert corpus_at(both, kinds_of(("translate",))) == config
    for tasks in (("pos",), ("translate",)):
        assert corpus_at(files[0].parent, kinds_of(tasks)) == CorpusConfig(str(files[0].parent))
    files[1].write_text("Ein Mann .\nNichts\nZwei Hunde\n")
    assert corpus_fingerprint(config, ("translate",)) != before


def test_translations_that_are_their_source_are_counted():
    sentences = [Sentence(("We", "ate"), translate=text, id="copy") for text in (" We  ate", "Wir aßen")]
    [note] = notes_on(CorpusCheck({"train": sentences}, {"translate": Translate()}))
    assert note == "train: 1 of 2 translations equal their source (the first, copy)"
