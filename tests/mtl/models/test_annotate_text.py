"""Running text in, annotations with places out: in Python, JSON, CoNLL-U and spaCy."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mtl.corpora.annotated_text import AnnotatedText, Offset
from mtl.corpora.formats.jsonl import from_json
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
