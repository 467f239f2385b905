"""An annotated text: sentences with the places of their words, and forms that other programs read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from mtl.corpora.formats.conllu import to_conllu
from mtl.corpora.formats.jsonl import to_json
from mtl.errors import InputError
from mtl.tasks.sentence import FEATS, LEMMAS, NO_FEATURES, Sentence, html_of

if TYPE_CHECKING:
    from spacy.tokens import Doc

    from mtl.tasks.decoders.decoder import Item

_NO_WORD = re.compile(r"(?:[\s\x00-\x1f\x7f-\x9f]|^\ufeff+)*", re.MULTILINE)


class Offset(NamedTuple):
    """A stretch of a text, in characters from 0; `end` is exclusive."""

    start: int
    end: int


def offsets_of(text: str, sentences: Sequence[Sentence]) -> list[tuple[Offset, ...]]:
    """For each sentence, the offsets of its words in the text.

    A word that consists of several parts, with blanks between them, may have other white space in the text.
    Raises `ValueError` unless the words spell the text, apart from white space, control characters and byte
    order marks at the start of a line.
    """
    placed, here = [], 0
    for sentence in sentences:
        offsets = []
        for word in sentence.words:
            starts = []
            for part in word.split():
                start = next(_NO_WORD.finditer(text, here)).end()
                if not text.startswith(part, start):
                    raise ValueError(f"the text has no word {word!a} at character {here}")
                starts.append(start)
                here = start + len(part)
            offsets.append(Offset(starts[0], here))
        placed.append(tuple(offsets))
    return placed


@dataclass(frozen=True)
class AnnotatedText:
    """The annotated sentences of a text; a word with the offset `(start, end)` is `text[start:end]`.

    White space within a word, as Vietnamese has it, is one blank in the word, and may be longer in the text.
    """

    text: str
    sentences: tuple[Sentence, ...]
    offsets: tuple[tuple[Offset, ...], ...]
    """For each sentence, the offsets of its words: characters counted from 0, the end exclusive."""
    items: tuple[Mapping[str, tuple[Item, ...]], ...] | None = field(default=None, repr=False)
    """For each sentence, by task, what the decoder finds most probable; `None`: not asked for."""

    def __len__(self) -> int:
        return len(self.sentences)

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self.sentences)

    def _repr_html_(self) -> str:
        """The sentences as a notebook shows them."""
        return "".join(map(html_of, self.sentences))

    def offset(self, sentence: int, start: int, end: int) -> Offset:
        """The offset of the words from `start` to `end` (exclusive) of a sentence, such as an entity."""
        words = self.offsets[sentence][start:end]
        return Offset(words[0].start, words[-1].end)

    def to_json(self) -> dict[str, Any]:
        """The text as a JSON object, with its sentences as `mtl.corpora.formats.jsonl` writes them."""
        items = self.items or (None,) * len(self)
        each = zip(self.sentences, self.offsets, items, strict=True)
        return {"text": self.text, "sentences": [to_json(*of_sentence) for of_sentence in each]}

    def to_conllu(self) -> str:
        """The sentences in CoNLL-U, with entities in MISC, and trees and frames in comments."""
        return "".join(map(to_conllu, self.sentences))

    def to_spacy(self) -> Doc:
        """The text as spaCy's `Doc`. Its tokens are the words, and white space beyond single blanks.

        Tags, universal tags, lemmas, features, arcs and entities are in spaCy's own attributes.
        `doc.spans["entities"]` has all entities; `doc.ents` lacks those that overlap a longer one.
        `doc.user_data["mtl"]` has the sentences of `to_json`, with trees, frames and all other layers.

        Raises `InputError` if spaCy (the extra `languages`) is not installed.
        """
        return _to_doc(self)


class _Token(NamedTuple):
    """A token of spaCy: a word of ours, or white space beyond the one blank that may follow it."""

    text: str
    blank: bool
    """Whether a blank follows it."""
    sentence: int
    """The index of its sentence; for white space, that of the word before it, or 0."""
    word: int | None
    """The index of the word in the sentence; `None`: white space."""


def _to_doc(annotated: AnnotatedText) -> Doc:
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
    """The index of each token's head (a root's is its own), and the relations; `None` without all heads."""
    if not sentences or any(sentence.arcs is None or None in sentence.arcs.heads for sentence in sentences):
        return None, None
    heads, relations = [], []
    for place, (_, _, number, word) in enumerate(tokens):
        arcs = sentences[number].arcs
        if word is None:
            heads.append(max(place - 1, 0) if place else 1)
            relations.append("dep")
        else:
            assert arcs is not None
            head = arcs.heads[word]
            assert head is not None
            heads.append(places[number, head - 1] if head else place)
            relations.append(arcs.relations[word] if head else "ROOT")
    return heads, relations


def _morph(bundle: str) -> str:
    """A bundle of features for spaCy; empty without features, and for what is not a bundle."""
    return bundle if bundle != NO_FEATURES and all("=" in part for part in bundle.split("|")) else ""
