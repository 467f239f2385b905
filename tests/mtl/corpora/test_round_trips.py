"""What is written is read back: the same sentences, from every format that this program writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mtl.corpora.formats.conllu import read_conllu, to_conllu
from mtl.corpora.formats.jsonl import read_jsonl, to_line, write_jsonl
from tasks.sentence import Label, Sentence
from tasks.tree import Tree
from tests.mtl.corpora.hostile import hostile_sentences


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written")


def test_json(folder: Path) -> None:
    sentences = hostile_sentences(1)
    write_jsonl(folder / "a.jsonl", sentences)
    assert read_jsonl(folder / "a.jsonl") == sentences


def test_conllu(folder: Path) -> None:
    """All layers; the text where it is not the words with blanks between them."""
    for sentence in hostile_sentences(2):
        path = folder / "a.conllu"
        path.write_bytes(to_conllu(sentence).encode() * 2)
        text = "" if sentence.text == " ".join(sentence.words) else sentence.text
        assert read_conllu(path) == [replace(sentence, text=text)] * 2


def test_pairs(folder: Path) -> None:
    pair = Sentence(("a", "b", "c"), second=2, labels=(Label("stsb", 3.0),), id="1")
    (folder / "p.conllu").write_text(to_conllu(pair))
    assert read_conllu(folder / "p.conllu") == [pair]
    (folder / "p.jsonl").write_text(to_line(pair))
    assert read_jsonl(folder / "p.jsonl") == [pair]


def test_a_tree_with_a_level_per_word(folder: Path) -> None:
    """As an undertrained decoder makes them."""
    words = tuple("w" for _ in range(300))
    tree = Tree("NN", "w")
    for _ in words[1:]:
        tree = Tree("S", (Tree("NN", "w"), tree))
    sentence = Sentence(words, tree=Tree("TOP", (tree,)), id="1")
    (folder / "d.jsonl").write_text(to_line(sentence))
    (folder / "d.conllu").write_text(to_conllu(sentence))
    for [read] in (read_jsonl(folder / "d.jsonl"), read_conllu(folder / "d.conllu")):
        assert str(read.tree) == str(sentence.tree)
