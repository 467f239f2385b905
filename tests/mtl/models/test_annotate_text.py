"""Running text in, annotations with places out: in Python, JSON, CoNLL-U and spaCy."""

from __future__ import annotations

import gc
import json
import random
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice, repeat
from pathlib import Path
from typing import Any

import pytest
import torch

from mtl.corpora.annotated_text import AnnotatedText, Offset
from mtl.corpora.formats.jsonl import from_json, to_json
from mtl.corpora.readers import read_sentences
from mtl.errors import InputError
from mtl.models.joint import JointModel
from mtl.tasks.sentence import Arcs, Sentence, Span
from tests.mtl.analysis import worth
from tests.mtl.corpora.hostile import hostile_sentences

TEXT = "  The dog saw a cat.\n\tIt can't see   the bird!\u00a0"


@pytest.fixture(scope="module")
def model(toy: Path) -> JointModel:
    return worth.joint_model(toy, ("pos", "ner", "dep"))


def test_words_have_their_places_and_annotations_are_those_of_annotate(model: JointModel) -> None:
    found = model.annotate_text(TEXT)
    assert [sentence.words for sentence in found] == [
        ("The", "dog", "saw", "a", "cat", "."), ("It", "ca", "n't", "see", "the", "bird", "!"),
    ]  # fmt: skip
    assert found.offsets[0][:2] == ((2, 5), (6, 9))
    for sentence, places in zip(found, found.offsets, strict=True):
        assert tuple(TEXT[start:end] for start, end in places) == sentence.words
    plain = model.annotate([sentence.words for sentence in found])
    assert [replace(sentence, id="", text="") for sentence in found] == plain
    assert found.sentences[0].tags is not None
    assert found.offset(1, 1, 4) == Offset(25, 34)
    assert found.items is None
    assert len(found) == 2


def test_confidences_are_those_of_annotate(model: JointModel) -> None:
    found = model.annotate_text(TEXT, probabilities=2)
    assert found.items is not None
    probable = model.annotate(found.sentences, probabilities=2)
    assert [dict(items) for items in found.items] == [dict(items) for _, items in probable]
    record = json.loads(json.dumps(found.to_json()))["sentences"][0]
    first = record["probabilities"]["pos"][0]
    assert first.keys() == {"kind", "start", "end", "best"}
    assert first["best"][0][1] > first["best"][1][1] > 0


@pytest.mark.parametrize("text", ["", " \n\t", "\0\x1b"])
@pytest.mark.parametrize("probabilities", [None, 2])
def test_a_text_without_words_has_no_sentences(
    model: JointModel, text: str, probabilities: int | None
) -> None:
    found = model.annotate_text(text, probabilities=probabilities)
    assert (len(found), found.to_conllu(), found.to_json()) == (0, "", {"text": text, "sentences": []})


def test_batches_and_threads_are_as_asked_for(model: JointModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    decoded = JointModel.decoded

    def counting(self, batch, **options):
        seen.append((len(batch.sentences), torch.get_num_threads()))
        return decoded(self, batch, **options)

    monkeypatch.setattr(JointModel, "decoded", counting)
    before = torch.get_num_threads()
    together = model.annotate_text("It slept. " * 6, threads=before + 1)
    assert seen == [(6, before + 1)]
    alone = model.annotate_text("It slept. " * 6, batch_tokens=1)
    assert seen[1:] == [(1, before)] * 6
    assert together == alone
    with pytest.raises(InputError, match="max_words"):
        model.annotate_text("It slept.", threads=before + 1, max_words=1)
    assert torch.get_num_threads() == before


def test_what_cannot_be_annotated_is_one_line(model: JointModel) -> None:
    with pytest.raises(InputError, match=r"^text: character 3 is half of a surrogate pair, .*; take it out$"):
        model.annotate_text("We \ud800 ate.")
    with pytest.raises(InputError, match=r"^language=klingon: no such language"):
        model.annotate_text("We ate.", "klingon")


def test_conllu_is_read_back(model: JointModel, tmp_path: Path) -> None:
    found = model.annotate_text(TEXT)
    (tmp_path / "text.conllu").write_text(found.to_conllu())
    assert read_sentences(tmp_path / "text.conllu", "conllu") == list(found)


def some_documents(number: int) -> list[Any]:
    """Texts of no to four sentences, lists of words, and sentences with annotations of other layers."""
    drawn = random.Random(number)
    parts = (
        "The dog saw a cat. ",
        "It slept!\n\n",
        "  We can't eat in Paris?  ",
        "\t",
        "Why not, e.g. there",
    )
    made: list[Any] = []
    for _ in range(number):
        kind = drawn.randrange(3)
        if kind == 0:
            made.append("".join(drawn.choices(parts, k=drawn.randrange(5))))
        elif kind == 1:
            made.append(["a", "very", "long", "day", "ended", "here", "and", "now"][: drawn.randint(1, 8)])
        else:
            words = tuple(drawn.choices(("We", "ate", ".", "Paris"), k=drawn.randint(1, 9)))
            made.append(Sentence(words, id=str(drawn.random()), lemmas=words))
    return made


def printed(found: Any) -> Any:
    """As JSON; a batch changes probabilities by the rounding of sums."""
    record = found.to_json() if isinstance(found, AnnotatedText) else None
    if isinstance(found, Sentence):
        record = to_json(found)
    elif record is None:
        record = to_json(found.sentence, None, found.items)
    return type(found), json.loads(json.dumps(record), parse_float=lambda digits: round(float(digits), 9))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"probabilities": 2, "tasks": ["dep", "pos"]}])
@pytest.mark.parametrize("window", [1, 7, 512])
def test_a_stream_has_what_each_document_has_alone(
    model: JointModel, window: int, options: dict[str, Any]
) -> None:
    given = some_documents(60)
    alone = [
        model.annotate_text(each, **options)
        if isinstance(each, str)
        else model.annotate([each], **options)[0]
        for each in given
    ]
    streamed = list(model.annotate_stream((each for each in given), window=window, **options))
    assert [printed(each) for each in streamed] == [printed(each) for each in alone]
    assert [each.text for each in streamed if isinstance(each, AnnotatedText)] == [
        each for each in given if isinstance(each, str)
    ]


@pytest.mark.parametrize("document", ["It slept. We ate.", "It slept.", ["We"], ""])
def test_of_endless_documents_one_window_is_held(model: JointModel, document: Any) -> None:
    """How far the input is ahead of the output, and how many of the results are still held."""
    read = 0

    def endless() -> Iterator[Any]:
        nonlocal read
        for each in repeat(document):
            read += 1
            yield each

    most, sentences = 12, 2 if isinstance(document, str) and "ate" in document else 1
    given = weakref.WeakSet[Any]()
    ahead = []
    stream = model.annotate_stream(endless(), window=most)
    assert read == 0
    for done in range(60):
        found = next(stream)
        ahead.append(read - done)
        if isinstance(found, AnnotatedText):
            given.add(found)
        del found
    gc.collect()
    assert max(ahead) == most // sentences
    assert min(ahead) == 1
    assert not given


def test_batches_of_a_stream_are_of_similar_length(
    model: JointModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[tuple[int, ...]] = Counter()
    decoded = JointModel.decoded

    def counting(self, batch, **options):
        seen[tuple(sorted({len(sentence) for sentence in batch.sentences}))] += 1
        return decoded(self, batch, **options)

    monkeypatch.setattr(JointModel, "decoded", counting)
    given = ([["We"] * (1 + 30 * (number % 2)) for number in range(24)]) * 2
    assert len(list(model.annotate_stream(given, window=24, batch_tokens=200))) == 48
    mixed = sum(batches for lengths, batches in seen.items() if len(lengths) > 1)
    assert mixed <= 2 < seen[31,]
    assert seen[1,] == 2


def test_a_document_that_cannot_be_annotated_is_named(model: JointModel) -> None:
    bad = {
        2: (["We", 3], "sentence 1: word 2 is 3, not a string"),
        3: ("We \ud800 ate.", "text: character 3 is half of a surrogate pair"),
        5: ([], "sentence 1 has no words: leave it out"),
        6: ("We ate. " + "It " * 9, "sentence 2 has 9 words, and decoders are given at most 8"),
        7: (None, "sentence 1 is None, not a list of words"),
    }
    given = [bad[number][0] if number in bad else "It slept." for number in range(1, 9)]
    # Of a list one random item would be checked for its type before the method sees it.
    good = model.annotate_text("It slept.")
    found = list(model.annotate_stream(iter(given), max_words=8, window=3, return_exceptions=True))
    for number, each in enumerate(found, 1):
        if number in bad:
            assert isinstance(each, InputError)
            assert str(each).startswith(f"document {number}: {bad[number][1]}")
        else:
            assert each == good
    raising = model.annotate_stream(iter(given), max_words=8)
    assert next(raising) == good
    with pytest.raises(InputError, match=r"^document 2: sentence 1: word 2"):
        next(raising)
    with pytest.raises(InputError, match=r"^language=klingon: no such language"):
        model.annotate_stream(count(), "klingon")
    with pytest.raises(InputError, match=r"^documents='We ate': use a list or generator of texts"):
        model.annotate_stream("We ate")
    assert [each.text for each in islice(model.annotate_stream(repeat("We ate")), 2)] == ["We ate"] * 2


def documents() -> list[AnnotatedText]:
    """Sentences with hostile words and labels, in a text with all sorts of white space."""
    made = []
    for seed in range(40):
        sentences, offsets, text = hostile_sentences(seed, 2), [], " \n" * (seed % 3)
        for sentence in sentences:
            places = []
            for number, word in enumerate(sentence.words):
                text += ("", " ", "  ", "\n", " \t ")[(seed + number) % 5]
                places.append(Offset(len(text), len(text) + len(word)))
                text += word
            offsets.append(tuple(places))
        made.append(AnnotatedText(text + " " * (seed % 4), tuple(sentences), tuple(offsets)))
    return made


def test_documents_of_spacy_have_the_text_the_places_and_the_layers() -> None:
    pytest.importorskip("spacy")
    parsed = 0
    for made in documents():
        doc = made.to_spacy()
        assert doc.text == made.text
        tokens = [token for token in doc if (token.idx, token.idx + len(token)) in {*sum(made.offsets, ())}]
        assert [token.text for token in tokens] == [word for sentence in made for word in sentence.words]
        places = iter(tokens)
        complete = all(sentence.arcs is not None for sentence in made)
        parsed += complete
        for sentence in made:
            words = [next(places) for _ in sentence.words]
            if sentence.tags is not None:
                assert [token.tag_ for token in words] == list(sentence.tags)
            if complete and sentence.arcs is not None:
                heads = [0 if token.head == token else words.index(token.head) + 1 for token in words]
                assert heads == list(sentence.arcs.heads)
        spans = [span for sentence in made for span in sentence.entities or ()]
        assert len(doc.spans.get("entities", ())) == len(spans) == len(doc.ents)
        records = json.loads(json.dumps(doc.user_data["mtl"]))
        for record in records:
            del record["offsets"]
        assert [from_json(record) for record in records] == list(made.sentences)
    assert parsed > 2


def test_a_document_of_spacy_by_hand() -> None:
    pytest.importorskip("spacy")
    sentence = Sentence(
        ("Ann", "left", "."),
        upos=("PROPN", "VERB", "none"),
        entities=(Span(0, 1, "PER"), Span(0, 2, "EVENT")),
        arcs=Arcs((2, 0, 2), ("nsubj", "root", "punct")),
        feats=("Case=Nom", "_", "odd"),
        lemmas=("Ann", "leave", "."),
    )
    made = AnnotatedText(" Ann  left.", (sentence,), ((Offset(1, 4), Offset(6, 10), Offset(10, 11)),))
    doc = made.to_spacy()
    assert [(token.text, token.pos_, token.lemma_, token.dep_, token.head.text) for token in doc] == [
        (" ", "SPACE", "", "dep", "Ann"), ("Ann", "PROPN", "Ann", "nsubj", "left"),
        (" ", "SPACE", "", "dep", "Ann"), ("left", "VERB", "leave", "ROOT", "left"),
        (".", "", ".", "punct", "left"),
    ]  # fmt: skip
    assert [str(token.morph) for token in doc] == ["", "Case=Nom", "", "", ""]
    assert [span.text for span in doc.sents] == [" Ann  left."]
    assert [(span.text, span.label_) for span in doc.spans["entities"]] == [
        ("Ann", "PER"),
        ("Ann  left", "EVENT"),
    ]
    assert [span.label_ for span in doc.ents] == ["EVENT"]


def test_without_spacy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy.tokens", None)
    with pytest.raises(InputError, match=r"^to_spacy needs spaCy.*pip install 'mtl-heads\[languages\]'$"):
        AnnotatedText("", (), ()).to_spacy()
