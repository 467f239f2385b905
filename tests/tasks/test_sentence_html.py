"""Sentences as HTML: every layer is there, whatever words and labels hold, and it is well-formed."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from mtl.tasks.sentence import Arcs, Frame, Graph, Sentence, Span
from mtl.tasks.tree import Tree
from tests.mtl.corpora.hostile import LABELS, WORDS, hostile_sentences

SVG = "{http://www.w3.org/2000/svg}"
MARKUP = ("<script>alert(1)</script>", "a&b", '"><i', "a\x00b", "x\ud800", "\u202egnp.exe", "]]>", "&amp;")


def read(sentence: Sentence) -> ElementTree.Element:
    html = sentence._repr_html_()
    html.encode("utf-8")
    return ElementTree.fromstring(html)


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("seed", range(4))
def test_hostile_sentences_are_well_formed_and_complete(seed: int) -> None:
    for sentence in hostile_sentences(seed, 30, (*WORDS, *MARKUP)):
        root = read(sentence)
        shown = texts(root)
        for label in (*(sentence.tags or ()), *(sentence.upos or ())):
            assert label in shown
        plain = [re.sub(r"[\x00\ud800\u202e]", "\ufffd", word) for word in sentence.words]
        assert shown.count(plain[0]) >= 1 + (sentence.tree is not None)
        assert not {element.tag for element in root.iter()} & {"script", "i"}
        if sentence.arcs is not None:
            assert all(relation in shown for relation in sentence.arcs.relations)
        if sentence.frames:
            bold = [element.text for element in root.iter("b")]
            assert len(bold) >= len(sentence.frames)


def test_each_layer_by_hand() -> None:
    sentence = Sentence(
        ("Ann", "saw", "我们", "."),
        tags=("NNP", "VBD", "PRP", "."),
        entities=(Span(0, 1, "PER"), Span(0, 3, "EVENT")),
        arcs=Arcs((2, 0, 2, 2), ("nsubj", "root", "obj", "punct")),
        tree=Tree.parse("(TOP (S (NP (NNP Ann)) (VP (VBD saw) (NP (PRP 我们))) (. .)))"),
        frames=(Frame(1, "see.01", (Span(0, 1, "ARG0"), Span(2, 3, "ARG1"))),),
        sst2="positive",
        stsb=2.5,
        deps=Graph(()),
        lemmas=("Ann", "see", "we", "."),
    )
    root = read(sentence)
    words, tree, lemmas = root.iter(f"{SVG}svg")
    assert texts(words) == [
        "nsubj", "root", "obj", "punct", "Ann", "saw", "我们", ".", "NNP", "VBD", "PRP", ".", "EVENT", "PER",
    ]  # fmt: skip
    assert sorted(texts(tree)) == sorted(
        ["TOP", "S", "NP", "NNP", "Ann", "VP", "VBD", "saw", "NP", "PRP", "我们", ".", "."]
    )
    assert texts(lemmas)[-4:] == ["Ann", "see", "we", "."]
    below = [
        "".join(element.itertext()) for element in root.findall("div") if element.find(f"{SVG}svg") is None
    ]
    assert below == [
        "saw see.01 ARG0 Ann ARG1 我们", "deps none", "lemmas ", "sst2 positive", "stsb 2.50",
    ]  # fmt: skip
    arrows = [path.get("d", "") for path in words.iter(f"{SVG}path") if path.get("d", "").endswith("Z")]
    assert len(arrows) == 4


def test_what_is_not_annotated_is_left_out_and_what_is_empty_is_said() -> None:
    assert texts(read(Sentence(("a", "b")))) == ["a", "b"]
    assert texts(read(Sentence(("a",), entities=()))) == ["a", "no entity"]
    assert "frames none" in "".join(read(Sentence(("a",), frames=())).itertext())
    assert texts(read(Sentence(()))) == []
    pair = read(Sentence(("a", "b"), second=1, mrpc="yes"))
    assert len([*pair.iter(f"{SVG}path")]) == 1


def test_arcs_do_not_share_a_level_where_they_overlap() -> None:
    arcs = Arcs((3, 3, 0, 6, 6, 3), ("a", "b", "c", "d", "e", "f"))
    heights = {}
    (words,) = read(Sentence(tuple("uvwxyz"), arcs=arcs)).iter(f"{SVG}svg")
    for element in words.iter(f"{SVG}text"):
        heights[element.text] = float(element.get("y", ""))
    assert heights["a"] < heights["b"]
    assert heights["f"] < heights["d"] < heights["e"]
    assert heights["b"] == heights["e"]


def test_a_deep_tree_is_drawn() -> None:
    tree = Tree("NN", "word")
    for label in LABELS * 100:
        tree = Tree(label, (tree,))
    assert "word" in texts(read(Sentence(("word",), tree=tree)))
