from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from mtl.corpora.formats.conllu import read_conllu
from mtl.corpora.picture import picture, to_conllu
from mtl.errors import InputError
from tasks.sentence import Arcs, Frame, Sentence, Span
from tasks.tree import Tree

SENTENCE = Sentence(
    words=("We", "ate", "cold", "[b]pizza[/b]", "in", "New", "York", "."),
    tags=("PRP", "VBD", "JJ", "NN", "IN", "NNP", "NNP", "."),
    upos=("PRON", "VERB", "ADJ", "NOUN", "ADP", "PROPN", "PROPN", "PUNCT"),
    entities=(Span(5, 7, "LOC"),),
    arcs=Arcs(
        (2, 0, 4, 2, 7, 7, 2, 2), ("nsubj", "root", "amod", "obj", "case", "compound", "obl:loc", "punct")
    ),
    tree=Tree.parse(
        "(TOP (S (NP (PRP We)) (VP (VBD ate) (NP (JJ cold) (NN [b]pizza[/b])) "
        "(PP (IN in) (NP (NNP New) (NNP York)))) (. .)))"
    ),
    frames=(Frame(1, "eat.01", (Span(2, 4, "A1"), Span(0, 1, "A0"))), Frame(3, None, ())),
    id="lunch-1",
)

PICTURE = """\
We/PRP ate/VBD cold/JJ [b]pizza[/b]/NN in/IN [LOC New/NNP York/NNP] ./.
dependencies
└── ate (2) root
    ├── We (1) nsubj
    ├── [b]pizza[/b] (4) obj
    │   └── cold (3) amod
    ├── York (7) obl:loc
    │   ├── in (5) case
    │   └── New (6) compound
    └── . (8) punct
constituents
└── TOP
    └── S
        ├── (NP (PRP We))
        ├── VP
        │   ├── (VBD ate)
        │   ├── (NP (JJ cold) (NN [b]pizza[/b]))
        │   └── PP
        │       ├── (IN in)
        │       └── (NP (NNP New) (NNP York))
        └── (. .)
frames
  eat.01 (2)  A0 = We  A1 = cold [b]pizza[/b]
  [b]pizza[/b] (4)
"""


def test_picture_of_five_layers() -> None:
    """Words that look like rich's markup are left as they are."""
    assert picture(SENTENCE) == PICTURE


def test_layers_not_annotated_are_left_out() -> None:
    words = ("Hello", "there")
    assert picture(Sentence(words)) == "Hello there\n"
    assert picture(Sentence(words, tags=("UH", "RB"), frames=())) == "Hello/UH there/RB\nframes: none\n"


def test_entities_within_entities() -> None:
    nested = (Span(0, 1, "LOC"), Span(0, 3, "ORG"), Span(2, 3, "PER"))
    words = ("Oslo", "University", "Nansen")
    assert picture(Sentence(words, entities=nested)) == "[ORG [LOC Oslo] University [PER Nansen]]\n"


def test_deep_trees_and_long_sentences_are_not_cut() -> None:
    words = tuple(f"w{number}" for number in range(300))
    chain = Arcs(tuple(range(300)), ("dep",) * 300)
    lines = picture(Sentence(words, arcs=chain)).splitlines()
    assert lines[0] == " ".join(words)
    assert len(lines) == 302
    assert lines[-1].endswith("└── w299 (300) dep")


def test_conllu_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "lunch.conllu"
    file.write_text(f"{to_conllu(SENTENCE)}\n{to_conllu(SENTENCE)}\n", encoding="utf8")
    kept = dataclasses.replace(SENTENCE, entities=None, tree=None, frames=None)
    assert read_conllu(file) == [kept, kept]


def test_conllu_carries_what_has_no_column() -> None:
    lines = to_conllu(SENTENCE).splitlines()
    comments = dict(line[2:].split(" = ", 1) for line in lines if line.startswith("#"))
    assert Tree.parse(comments["tree"]) == SENTENCE.tree
    assert json.loads(comments["frames"]) == [
        {"predicate": 1, "sense": "eat.01", "arguments": [[2, 4, "A1"], [0, 1, "A0"]]},
        {"predicate": 3, "sense": None, "arguments": []},
    ]
    assert comments["text"] == "We ate cold [b]pizza[/b] in New York ."
    misc = [line.split("\t")[9] for line in lines if not line.startswith("#")]
    assert misc == ["NER=O"] * 5 + ["NER=B-LOC", "NER=I-LOC", "NER=O"]


def test_conllu_of_bare_words(tmp_path: Path) -> None:
    """Tabs and line ends in a word would be columns and rows of their own."""
    bare = Sentence(("a\tb", "c\nd", ""))
    text = to_conllu(bare)
    assert text.splitlines() == [
        "# text = a b c d _",
        "1\ta b" + "\t_" * 8,
        "2\tc d" + "\t_" * 8,
        "3\t_" + "\t_" * 8,
    ]
    file = tmp_path / "bare.conllu"
    file.write_text(text, encoding="utf8")
    (read,) = read_conllu(file)
    assert (read.tags, read.arcs) == (None, None)


def test_overlapping_entities_have_no_conllu() -> None:
    overlapping = dataclasses.replace(SENTENCE, entities=(Span(0, 3, "PER"), Span(2, 4, "LOC")))
    with pytest.raises(InputError, match="'lunch-1': overlapping entities at word 3"):
        to_conllu(overlapping)
