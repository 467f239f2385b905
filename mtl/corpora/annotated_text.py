"""An annotated text: sentences with the places of their words, and forms that other programs read.

`sentence_picture` draws an annotated sentence as text for a terminal.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.text import Text
from rich.tree import Tree as Branch

from mtl.corpora.formats.dependencies import to_conllu
from mtl.corpora.formats.jsonl import to_json
from mtl.errors import InputError
from mtl.tasks.catalogue import in_order_of_catalogue
from mtl.tasks.sentence import FEATS, LEMMAS, NO_FEATURES, Arcs, Frame, Graph, Sentence, html_of, is_label
from mtl.tasks.tree import Tree

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


_WIDE = 10_000
_SLASH = "\\/"
_DRAWN = ("entities", "arcs", "tree", "frames")
"""The layers that are drawn in a way of their own, besides the tags of words."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys: control characters, and those that change the direction of writing."""


def sentence_picture(sentence: Sentence) -> str:
    r"""The annotated layers, one below the other.

    Words come with their tags as `word/TAG` (a slash within a word is `\/`, as in the Penn Treebank), or with
    universal tags if there are no others, and with entities in brackets. The sentences of a pair have a line
    each. Arcs are a tree from the root down, each
    word with its number and relation. Constituents are a tree, the lowest ones in bracket notation. There is
    a line per frame, and per word with heads in a graph. A label of the whole sentence is `layer: label`, and
    an empty layer is `layer: none`. Control characters are shown as escapes.
    """
    words = [visible(word) for word in sentence.words]
    tags = "upos" if sentence.tags is None else "tags"
    parts = [_line(sentence, words, sentence.layer(tags))]
    if sentence.entities == ():
        parts.append("entities: none")
    if sentence.arcs is not None:
        parts.append(_drawn(_arcs(words, sentence.arcs)))
    if sentence.tree is not None:
        parts.append(_drawn(_constituents(sentence.tree)))
    if sentence.frames is not None:
        frames = [_frame(words, frame) for frame in sentence.frames]
        parts.append("\n".join(["frames", *frames] if frames else ["frames: none"]))
    drawn = (tags, *_DRAWN)
    others = {name: value for name, value in sorted(sentence.layers.items()) if name not in drawn}
    on_words = [name for name, value in others.items() if not is_label(value)]
    ordered = (*on_words, *in_order_of_catalogue(others.keys() - on_words))
    parts += [f"{name}: {_named(words, others[name])}" for name in ordered]
    return "\n".join(parts) + "\n"


def _named(words: Sequence[str], value: Any) -> str:
    """Any other layer, on one or more lines."""
    if is_label(value):
        return visible(value) if isinstance(value, str) else f"{value:.2f}"
    if isinstance(value, Arcs):
        return _drawn(_arcs(words, value))
    if isinstance(value, Tree):
        return _drawn(_constituents(value))
    if isinstance(value, Graph):
        return "\n".join(["", *_graph(words, value)]) if value.arcs else "none"
    if not value:
        return "none"
    if isinstance(value[0], Frame):
        return "\n".join(["", *(_frame(words, frame) for frame in value)])
    if isinstance(value[0], str):
        return " ".join(map(visible, value))
    return "  ".join(f"[{visible(label)} {' '.join(words[start:end])}]" for start, end, label in value)


def visible(text: str) -> str:
    """The text with control characters as escapes."""
    return _CONTROL.sub(lambda match: ascii(match.group())[1:-1], text)


def _line(sentence: Sentence, words: Sequence[str], tags: Sequence[str] | None) -> str:
    if tags is not None:
        words = [f"{word.replace('/', _SLASH)}/{tag}" for word, tag in zip(words, tags, strict=True)]
    opening: defaultdict[int, str] = defaultdict(str)
    closing: defaultdict[int, str] = defaultdict(str)
    # The longest comes first, so that an entity within another opens after it.
    for start, end, label in sorted(sentence.entities or (), key=lambda span: (span.start, -span.end)):
        opening[start] += f"[{label} "
        closing[end - 1] += "]"
    shown = [opening[index] + word + closing[index] for index, word in enumerate(words)]
    if sentence.second is None:
        return " ".join(shown)
    return "\n".join(" ".join(part) for part in (shown[: sentence.second], shown[sentence.second :]))


def _arcs(words: Sequence[str], arcs: Arcs) -> Branch:
    dependents = defaultdict(list)
    for number, head in enumerate(arcs.heads, start=1):
        dependents[head].append(number)
    root = Branch("dependencies")
    stack: list[tuple[Branch, int | None]] = [(root, 0)]
    if dependents[None]:
        stack.append((root.add(Text("without a head")), None))
    while stack:
        branch, head = stack.pop()
        for number in dependents[head]:
            label = Text(f"{words[number - 1]} ({number}) {arcs.relations[number - 1]}")
            stack.append((branch.add(label), number))
    return root


def _graph(words: Sequence[str], graph: Graph) -> list[str]:
    """A line for each word with heads: the labels, and the heads with their numbers."""
    lines = []
    for number, arcs in groupby(graph.arcs, attrgetter("dependent")):
        heads = [
            f"{visible(label)} {words[head - 1]} ({head})" if head else f"{visible(label)} (0)"
            for _, head, label in arcs
        ]
        lines.append(f"  {words[number - 1]} ({number}): {', '.join(heads)}")
    return lines


def _constituents(tree: Tree) -> Branch:
    root = Branch("constituents")
    stack = [(root, tree)]
    while stack:
        branch, node = stack.pop()
        if isinstance(node.children, str) or all(child.is_preterminal for child in node.children):
            branch.add(Text(visible(str(node))))
            continue
        inner = branch.add(Text(node.label or "()"))
        stack += [(inner, child) for child in reversed(node.children)]
    return root


def _drawn(branch: Branch) -> str:
    out = StringIO()
    Console(markup=False, file=out, width=_WIDE, color_system=None, emoji=False, highlight=False).print(
        branch
    )
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))


def _frame(words: Sequence[str], frame: Frame) -> str:
    arguments = [f"{label} = {' '.join(words[start:end])}" for start, end, label in sorted(frame.arguments)]
    return "  ".join([f"  {frame.sense or words[frame.predicate]} ({frame.predicate + 1})", *arguments])
