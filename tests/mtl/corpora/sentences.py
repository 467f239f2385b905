"""A sentence with an annotation in every layer, for tests of writers."""

from __future__ import annotations

from mtl.tasks.sentence import Arcs, Frame, Sentence, Span
from mtl.tasks.tree import Tree

LUNCH = Sentence(
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
