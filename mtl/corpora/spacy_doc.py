"""An annotated text as a spaCy document."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mtl.corpora.annotated_text import AnnotatedText
from mtl.errors import InputError
from mtl.tasks.sentence import FEATS, LEMMAS, NO_FEATURES, Sentence

if TYPE_CHECKING:
    from spacy.tokens import Doc


class _Token(NamedTuple):
    """A token of spaCy: a word of ours, or white space beyond the one blank that may follow it."""

    text: str
    blank: bool
    """Whether a blank follows it."""
    sentence: int
    """The index of its sentence; for white space, that of the word before it, or 0."""
    word: int | None
    """The index of the word in the sentence; `None`: white space."""


def to_doc(annotated: AnnotatedText) -> Doc:
    """The document of `AnnotatedText.to_spacy`."""
    try:
        from spacy.parts_of_speech import IDS
        from spacy.tokens import Doc, Span
        from spacy.util import filter_spans
        from spacy.vocab import Vocab
    except ImportError as error:
        raise InputError(
            "to_spacy needs spaCy, which is not installed: pip install 'mtl-heads[languages]'"
        ) from error
    tokens = _tokens(annotated)
    sentences = annotated.sentences
    places = {
        (token.sentence, token.word): place for place, token in enumerate(tokens) if token.word is not None
    }

    def column(layer: str, of_white_space: str = "") -> list[str] | None:
        values = [sentence.layer(layer) for sentence in sentences]
        if not any(values):
            return None
        return [
            of_white_space if token.word is None else (values[token.sentence] or {token.word: ""})[token.word]
            for token in tokens
        ]

    pos, features = column("upos", "SPACE"), column(FEATS)
    starts = [not place or token.word == 0 for place, token in enumerate(tokens)]
    heads, relations = _heads(sentences, tokens, places)
    doc = Doc(
        Vocab(),
        words=[token.text for token in tokens],
        spaces=[token.blank for token in tokens],
        tags=column("tags", "_SP"),
        pos=None if pos is None else [tag if tag in IDS else "" for tag in pos],
        lemmas=column(LEMMAS),
        morphs=None if features is None else [_morph(bundle) for bundle in features],
        heads=heads,
        deps=relations,
        sent_starts=starts if heads is None else None,
        user_data={"mtl": annotated.to_json()["sentences"]},
    )
    if any(sentence.entities is not None for sentence in sentences):
        spans = [
            Span(doc, places[number, start], places[number, end - 1] + 1, label)
            for number, sentence in enumerate(sentences)
            for start, end, label in sentence.entities or ()
        ]
        doc.spans["entities"] = spans
        doc.set_ents(filter_spans(spans))
    return doc


def _tokens(annotated: AnnotatedText) -> list[_Token]:
    """Tokens that spell the text, which is all that spaCy keeps of it."""
    tokens: list[_Token] = []
    text, here = annotated.text, 0

    def white_space(until: int, sentence: int) -> None:
        gap = text[here:until]
        if tokens and gap.startswith(" "):
            tokens[-1] = tokens[-1]._replace(blank=True)
            gap = gap[1:]
        if gap:
            tokens.append(_Token(gap, False, sentence, None))

    for number, offsets in enumerate(annotated.offsets):
        for word, (start, end) in enumerate(offsets):
            white_space(start, number if word else max(number - 1, 0))
            tokens.append(_Token(text[start:end], False, number, word))
            here = end
    white_space(len(text), len(annotated.sentences) - 1)
    return tokens


def _heads(
    sentences: tuple[Sentence, ...], tokens: list[_Token], places: dict[tuple[int, int], int]
) -> tuple[list[int] | None, list[str] | None]:
    """The index of each token's head (a root's is its own), and the relations; `None` without all arcs."""
    if not sentences or any(sentence.arcs is None for sentence in sentences):
        return None, None
    heads, relations = [], []
    for place, (_, _, number, word) in enumerate(tokens):
        arcs = sentences[number].arcs
        assert arcs is not None
        if word is None:
            heads.append(max(place - 1, 0) if place else 1)
            relations.append("dep")
        else:
            head = arcs.heads[word]
            heads.append(places[number, head - 1] if head else place)
            relations.append(arcs.relations[word] if head else "ROOT")
    return heads, relations


def _morph(bundle: str) -> str:
    """A bundle of features for spaCy; empty without features, and for what is not a bundle."""
    return bundle if bundle != NO_FEATURES and all("=" in part for part in bundle.split("|")) else ""
