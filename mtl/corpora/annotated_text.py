"""An annotated text: sentences, the places of their words in it, and what other programs read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mtl.corpora.formats.conllu import to_conllu
from mtl.corpora.formats.jsonl import to_json
from mtl.corpora.running_text import Offset
from mtl.tasks.sentence import Sentence
from mtl.tasks.sentence_html import html_of

if TYPE_CHECKING:
    from spacy.tokens import Doc

    from mtl.tasks.decoders.alternatives import Item


@dataclass(frozen=True)
class AnnotatedText:
    """The annotated sentences of a text; `text[start:end]` of each word's offset is the word."""

    text: str
    sentences: tuple[Sentence, ...]
    offsets: tuple[tuple[Offset, ...], ...]
    """Of each sentence the places of its words, in characters from 0, the end exclusive."""
    items: tuple[Mapping[str, tuple[Item, ...]], ...] | None = field(default=None, repr=False)
    """Of each sentence by task what the decoder found most probable; `None`: not asked for."""

    def __len__(self) -> int:
        return len(self.sentences)

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self.sentences)

    def _repr_html_(self) -> str:
        """The sentences as notebooks show them."""
        return "".join(map(html_of, self.sentences))

    def offset(self, sentence: int, start: int, end: int) -> Offset:
        """The place of words `start` to `end` (exclusive) of a sentence, such as those of an entity."""
        words = self.offsets[sentence][start:end]
        return Offset(words[0].start, words[-1].end)

    def to_json(self) -> dict[str, Any]:
        """The text as an object of JSON.

        Sentences are as in our own format, with `offsets`, and with `probabilities` where they were asked
        for: by task a list of `{kind, start, end, best}`, and `predicate` where an item has one.
        """
        records = []
        for number, sentence in enumerate(self.sentences):
            record = to_json(sentence) | {"offsets": self.offsets[number]}
            if self.items is not None:
                record["probabilities"] = {
                    task: [_without_none(item._asdict()) for item in items]
                    for task, items in self.items[number].items()
                }
            records.append(record)
        return {"text": self.text, "sentences": records}

    def to_conllu(self) -> str:
        """The sentences in CoNLL-U; entities are in MISC, trees and frames in comments."""
        return "".join(map(to_conllu, self.sentences))

    def to_spacy(self) -> Doc:
        """The text as spaCy's `Doc`, whose tokens are the words, and what white space spaCy has tokens for.

        Tags, universal tags, lemmas, features, arcs and entities are in their places. Entities that overlap
        others are in `doc.spans["entities"]` only, where all are. `doc.user_data["mtl"]` has the sentences
        of `to_json`, with trees, frames and all other layers.

        Raises `InputError` without spaCy (the extra `languages`).
        """
        from mtl.corpora.spacy_doc import to_doc

        return to_doc(self)


def _without_none(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}
