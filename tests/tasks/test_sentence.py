"""Layers of a sentence by name.
Sentences as HTML: every layer is there, whatever words and labels hold, and it is well-formed.
"""

from __future__ import annotations

import copy
import json
import pickle
import random
import re
from dataclasses import FrozenInstanceError
from xml.etree import ElementTree

import pytest

from mtl.corpora.formats.jsonl import from_json, to_line
from mtl.tasks.sentence import Arc, Arcs, Frame, Graph, Sentence, Span
from mtl.tasks.tree import Tree
from tests.mtl.corpora.hostile import LABELS, WORDS, hostile_sentences

VALUES = (
    None,
    ("X", "Y"),
    (Span(0, 1, "A"),),
    (),
    Arcs((2, 0), ("nsubj", "root")),
    Graph((Arc(1, 2, "a"), Arc(2, 0, "root"))),
    Tree.parse("(TOP (S (A a) (B b)))"),
    (Frame(1, "b.01", (Span(0, 1, "A0"),)),),
    "order",
    2.5,
)
NAMES = ("ner2", "feats.Case", "a~b", "words", "id", "labels", "layers", "named", "text", "é", "intent")


def test_layers_of_any_name_come_and_go_and_are_the_value_of_a_sentence() -> None:
    """A layer of any name is kept, also in copies and files, however it was given."""
    rng = random.Random(0)
    for number in range(300):
        given = {name: rng.choice(VALUES) for name in rng.sample(NAMES, rng.randint(0, len(NAMES)))}
        there = {name: value for name, value in given.items() if value is not None}
        sentence = Sentence(("a", "b"), given, id=str(number), text="a b", place="f:1", notes=("odd",))
        assert sentence.layers == there
        assert all(sentence.layer(name) == value for name, value in given.items())
        assert (sentence.id, sentence.words, len(sentence)) == (str(number), ("a", "b"), 2)
        bare = sentence.with_layers(dict.fromkeys(given))
        again = bare
        for name in rng.sample([*given], len(given)):
            again = again.with_layers({name: given[name]})
        made = pickle.loads(pickle.dumps(sentence)), copy.deepcopy(sentence), eval(repr(sentence))
        for other in (*made, again, from_json(json.loads(to_line(sentence)))):
            assert (other, hash(other)) == (sentence, hash(sentence))
            assert to_line(other) == to_line(sentence)
        assert (made[0].place, made[0].notes) == ("f:1", ("odd",))
        assert bare == Sentence(("a", "b"), id=str(number), text="a b")
        assert (bare == sentence) is not bool(there)


def test_keywords_that_are_no_fields_are_layers() -> None:
    sentence = Sentence(("a", "b"), {"upos": ("U", "V")}, tags=("X", "Y"), ner2=(), arcs=None, cola="1")
    assert sentence.layers == {"upos": ("U", "V"), "tags": ("X", "Y"), "ner2": (), "cola": "1"}
    assert (sentence.tags, sentence.upos, sentence.arcs) == (("X", "Y"), ("U", "V"), None)
    assert (sentence.layer("tags"), sentence.layer("mrpc")) == (sentence.tags, None)
    assert sentence.with_layers({}) is sentence


def test_nothing_of_a_sentence_can_be_changed() -> None:
    layers = {"tags": ("X",)}
    sentence = Sentence(("a",), layers)
    layers["tags"] = ("Y",)
    assert sentence.tags == ("X",)
    with pytest.raises(FrozenInstanceError):
        sentence.words = ()
    with pytest.raises(TypeError, match="does not support item assignment"):
        sentence.layers["tags"] = ("Y",)
    assert len({Sentence(("a", "b", "c"), second=cut) for cut in (None, 1, 2)}) == 3


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
    heights = {element.text: float(element.get("y", "")) for element in words.iter(f"{SVG}text")}
    assert heights["obj"] < heights["Ann"] < heights["NNP"] < min(heights["EVENT"], heights["PER"])
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
