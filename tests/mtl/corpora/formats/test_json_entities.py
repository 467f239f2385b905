"""Entities in JSON: the layouts of several programs are one sentence; what fits no word is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import Span as SpacySpan

from mtl.corpora.annotated_text import AnnotatedText, offsets_of
from mtl.corpora.formats.json_entities import (
    ACROSS,
    GROUPED,
    MISALIGNED,
    REJECTED,
    UNLABELLED,
    read_json_entities,
)
from mtl.corpora.readers import read_sentences
from mtl.errors import InputError
from mtl.tasks.sentence import Sentence, Span

TEXT = "Ann met Bob Lee in Ulm."
TOKENS = ["Ann", "met", "Bob", "Lee", "in", "Ulm", "."]
SPANS = [[0, 3, "PER"], [8, 15, "PER"], [19, 22, "LOC"]]
OF_TOKENS = [[0, 1, "PER"], [2, 4, "PER"], [5, 6, "LOC"]]
ENTITIES = tuple(Span(*span) for span in OF_TOKENS)


def _spacy() -> dict[str, Any]:
    doc = spacy.blank("en")(TEXT)
    doc.ents = [SpacySpan(doc, *span) for span in OF_TOKENS]
    return doc.to_json()


OBJECTS = [{"start": start, "end": end, "label": label} for start, end, label in SPANS]
LAYOUTS = {
    "spacy 3": _spacy(),
    "spacy 2": [TEXT, {"entities": SPANS}],
    "doccano": {"id": 7, "text": TEXT, "label": SPANS},
    "prodigy": {
        "text": TEXT,
        "tokens": [
            {"text": word, "start": TEXT.index(word), "end": TEXT.index(word) + len(word)} for word in TOKENS
        ],
        "spans": OBJECTS,
    },
    "tokens": {"tokens": TOKENS, "entities": OF_TOKENS},
    "text and tokens": {"text": TEXT, "words": TOKENS, "ner": SPANS},
    "hanlp": {
        "doc_key": "d",
        "sentences": [["Hi", "!"], TOKENS],
        "ner": [[], [[start + 2, end + 1, label] for start, end, label in OF_TOKENS]],
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("whole", [False, True])
def test_layouts_are_one_sentence(tmp_path: Path, layout: str, whole: bool) -> None:
    """One object per line, or one list over several lines."""
    path, record = tmp_path / "a.json", LAYOUTS[layout]
    path.write_text(json.dumps([record, record], indent=1) if whole else json.dumps(record) + "\n\n")
    *_, last = read_sentences(path, "json-entities")
    assert (last.words, last.entities, last.notes) == (tuple(TOKENS), ENTITIES, ())
    assert last.id == {"doccano": "7", "hanlp": "d.2"}.get(layout, f"a-000{1 + whole}")
    assert last.text == ("" if layout in ("tokens", "hanlp") else TEXT)


def test_what_fits_no_words_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    text = "Ann left.  Bob Lee stayed."
    spans = [[1, 3, "PER"], [4, 14, "X"], [11, 18, "PER"], [11, 14, "PER"], [17, 26, "Y"]]
    path.write_text(
        json.dumps({"text": text, "entities": spans}) + "\n" + json.dumps({"text": "Go.", "entities": None})
    )
    first, second, third = read_json_entities(path)
    assert (first.entities, first.notes) == ((), (MISALIGNED, ACROSS))
    assert (second.entities, second.notes) == ((Span(0, 1, "PER"), Span(0, 2, "PER")), (MISALIGNED,))
    assert (third.entities, third.notes) == (None, (UNLABELLED,))


def test_what_an_annotator_rejected_is_not_annotated(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    spans = [{"start": 0, "end": 2, "label": "X"}]
    answers = {"accept": (Span(0, 1, "X"),), "reject": None, "ignore": None}
    path.write_text("\n".join(json.dumps({"text": "Go", "spans": spans, "answer": each}) for each in answers))
    read = read_json_entities(path)
    assert [each.entities for each in read] == [*answers.values()]
    assert [each.notes for each in read] == [(), (REJECTED,), (REJECTED,)]
    path.write_text(json.dumps({"text": "Go", "answer": "ignore"}))
    assert read_json_entities(path)[0].entities is None


@pytest.mark.parametrize("places", [True, False])
def test_white_space_is_no_word_and_in_no_entity(tmp_path: Path, places: bool) -> None:
    """As a token of spaCy and Prodigy, and at the borders of spans."""
    path, text = tmp_path / "a.jsonl", "Ann \n\n left"
    tokens: list[Any] = ["Ann", "\n\n ", "left"]
    if places:
        tokens = [
            {"text": each, "start": text.index(each), "end": text.index(each) + len(each)} for each in tokens
        ]
    record = {"text": text, "tokens": tokens, "entities": [[0, 6, "X"], [3, 11, "Y"], [3, 7, "Z"]]}
    path.write_text(json.dumps(record))
    (sentence,) = read_json_entities(path)
    assert (sentence.words, sentence.entities) == (("Ann", "left"), (Span(0, 1, "X"), Span(1, 2, "Y")))
    assert (sentence.text, sentence.notes) == ("Ann left", (MISALIGNED,))


def test_a_document_of_our_own_is_read_back(tmp_path: Path) -> None:
    """With its sentences, and without the tokens of white space that spaCy has."""
    text = " Ann  left.\n\nBob stayed. "
    sentences = (
        Sentence(("Ann", "left", "."), entities=(Span(0, 1, "PER"),), text="Ann left."),
        Sentence(("Bob", "stayed", "."), entities=(Span(0, 1, "PER"),), text="Bob stayed."),
    )
    overlapping = sentences[1].with_layers({"entities": (Span(0, 1, "PER"), Span(0, 1, "X"))})
    annotated = AnnotatedText(text, (sentences[0], overlapping), tuple(offsets_of(text, sentences)))
    path = tmp_path / "a.json"
    path.write_text(json.dumps(annotated.to_spacy().to_json()))
    read = read_json_entities(path)
    assert [(each.words, each.entities, each.text) for each in read] == [
        (each.words, each.entities, each.text) for each in sentences
    ]
    assert [each.notes for each in read] == [(GROUPED,), ()]


def test_an_id_may_be_zero(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(json.dumps({"id": each, "text": "Go", "ents": []}) + "\n" for each in (0, "", None))
    )
    assert [each.id for each in read_json_entities(path)] == ["0", "a-0002", "a-0003"]


def test_ends_can_be_declared(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"tokens": TOKENS, "ner": [[0, 0, "PER"], [2, 3, "PER"]]}))
    assert read_sentences(path, "json-entities:ends=inclusive")[0].entities == ENTITIES[:2]
    with pytest.raises(InputError, match=r"a\.json:1: the entity .* use json-entities:ends=inclusive"):
        read_sentences(path, "json-entities")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "not JSON"),
        ("7", "7 is not an object"),
        ({"text": "Go"}, "no entities: give it a key such as 'entities' (found: text)"),
        ({"text": "Go", "entities": [], "spans": []}, "both 'entities' and 'spans'"),
        ({"entities": []}, "no text and no tokens"),
        ({"text": " ", "entities": []}, "a text without words"),
        ({"text": 3, "entities": []}, "'text' is 3"),
        ({"tokens": ["a", 3], "entities": []}, "the token 3 is not a string, and has"),
        ({"tokens": [], "entities": []}, "not a list of tokens"),
        ({"text": "a b", "tokens": ["a", "c"], "entities": []}, "the text has no word 'c'"),
        ({"text": "a b", "tokens": ["a", "", "b"], "entities": []}, "token 2 is empty"),
        ({"text": " ", "tokens": [" "], "entities": []}, "a text without words"),
        (
            {
                "text": "a b",
                "tokens": [{"start": 2, "end": 3}, {"start": 0, "end": 1}],
                "entities": [[0, 3, "X"]],
            },
            "a token from 0 to 1 after one from 2 to 3: write tokens in order",
        ),
        ({"text": "Go", "entities": [[0, 3, "X"]]}, "characters are 0 to 2, and ends are exclusive"),
        ({"text": "Go", "entities": [[0, 2]]}, "an entity is [start, end, label]"),
        ({"text": "Go", "entities": [{"start": 0, "end": 2}]}, "no label"),
        ({"text": "Go", "entities": [[0, 2, "a b"]]}, "white space"),
        ({"sentences": [["a"]], "ner": []}, "lists of the same length"),
        # Spans that count the tokens of their own sentence, where those of the document are expected.
        ({"sentences": [["a", "b"], ["c", "d"]], "ner": [[], [[0, 1, "X"]]]}, "tokens are 2 to 3"),
    ],
)
def test_faults_are_named(tmp_path: Path, record: Any, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n" + (record if isinstance(record, str) else json.dumps(record)))
    with pytest.raises(InputError, match=r"a\.jsonl:2: ") as error:
        read_json_entities(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
