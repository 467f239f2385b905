"""Layers of a sentence by name: fields, and labels of tasks on whole sentences."""

from __future__ import annotations

from mtl.tasks.sentence import Label, Sentence


def test_layers_are_fields_or_labels() -> None:
    sentence = Sentence(("a", "b"), tags=("X", "Y"), labels=(Label("cola", "1"), Label("stsb", 2.0)))
    assert sentence.layer("tags") == ("X", "Y")
    assert sentence.layer("words") == ("a", "b")
    assert sentence.layer("arcs") is None
    assert (sentence.layer("cola"), sentence.layer("stsb"), sentence.layer("mrpc")) == ("1", 2.0, None)


def test_layers_are_put_in_replaced_and_taken_away() -> None:
    sentence = Sentence(("a", "b"))
    labelled = sentence.with_layers({"stsb": 0.0, "cola": "0", "tags": ("X", "Y")})
    assert labelled == Sentence(("a", "b"), ("X", "Y"), labels=(Label("cola", "0"), Label("stsb", 0.0)))
    assert labelled.with_layers({"cola": "1"}).layer("cola") == "1"
    assert labelled.with_layers({"cola": None}).labels == (Label("stsb", 0.0),)
    assert labelled.with_layers({"cola": None, "stsb": None, "tags": None}) == sentence
    assert sentence.with_layers({"cola": None, "arcs": None}) == sentence
    assert sentence.with_layers({}) is sentence


def test_sentences_are_values() -> None:
    """Order of the labels' making is of no account; the place where a pair is divided is."""
    first = Sentence(("a", "b")).with_layers({"stsb": 1.0}).with_layers({"cola": "1"})
    second = Sentence(("a", "b")).with_layers({"cola": "1"}).with_layers({"stsb": 1.0})
    assert first == second
    assert hash(first) == hash(second)
    assert len({Sentence(("a", "b", "c"), second=cut) for cut in (None, 1, 2)}) == 3
