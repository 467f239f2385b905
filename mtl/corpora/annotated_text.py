"""An annotated text: its sentences, the offsets of their words, and the forms that other programs read."""

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
    """The annotated sentences of a text; a word with the offset `(start, end)` is `text[start:end]`."""

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
        """The text as a JSON object.

        Its sentences are in our own format (`mtl.corpora.formats.jsonl`), with `offsets`. If probabilities
        were asked for, a sentence also has `probabilities`: by task, a list of `{kind, start, end, best}`,
        with `predicate` if the item has one.
        """
        records = []
        for number, sentence in enumerate(self.sentences):
            record = to_json(sentence) | {"offsets": self.offsets[number]}
            if self.items is not None:
                record["probabilities"] = {
                    task: [
                        {key: value for key, value in item._asdict().items() if value is not None}
                        for item in items
                    ]
                    for task, items in self.items[number].items()
                }
            records.append(record)
        return {"text": self.text, "sentences": records}

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
        from mtl.corpora.spacy_doc import to_doc

        return to_doc(self)
