"""Layers of a sentence by name."""

from __future__ import annotations

import copy
import json
import pickle
import random
from dataclasses import FrozenInstanceError

import pytest

from mtl.corpora.formats.jsonl import from_json, to_line
from mtl.tasks.sentence import Arc, Arcs, Frame, Graph, Sentence, Span
from mtl.tasks.tree import Tree

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
