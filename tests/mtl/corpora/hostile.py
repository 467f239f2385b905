"""Sentences whose words and labels look like the syntax of formats."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from mtl.tasks.sentence import Arc, Arcs, Frame, Graph, Sentence, Span
from mtl.tasks.tree import Tree

WORDS = (
    "a",
    "Bob",
    "_",
    "#",
    "#a=b",
    "# text = x",
    "-DOCSTART-",
    "-X-",
    "-",
    "(",
    ")",
    "()",
    "-LRB-",
    "[WORD]",
    "*",
    "(A0*",
    "10\u00a0000",
    "\u3000x",
    "a b",
    "a\u2028b",
    "\u200b",
    "e\u0301",
    "\ufeffa",
    "|",
    "=",
    "\\",
    "\\p",
    "%28",
    "1",
    "1-2",
    "1.1",
    "O",
    "B-PER",
    "NER=O",
    "SpaceAfter=No",
    "null",
    '"',
    "{",
    "😀",
    "ﷺ",
    "x" * 120,
    "é" * 60,
)
LABELS = (
    "A",
    "NP",
    "_",
    "O",
    "B-X",
    "A|B",
    "A\\B",
    "\\p",
    "a=b",
    "$(",
    "-LRB-",
    "(",
    ")",
    "%28",
    "%",
    "*",
    "#",
    "'",
    "``",
    "C-A",
    "R-A",
    "é",
    "\u200b",
    "NER=B-X",
    "SpaceAfter=No",
    "L" * 40,
    "nsubj:pass",
    "A,B",
    "&",
    "\\",
)


def hostile_sentences(seed: int, count: int = 200, words: tuple[str, ...] = WORDS) -> list[Sentence]:
    """Sentences with all layers or some of them; the text of some is known."""
    rng = random.Random(seed)
    return [_sentence(rng, words, str(number)) for number in range(count)]


def otherwise_annotated(seed: int, sentences: Sequence[Sentence]) -> list[Sentence]:
    """The same sentences with other annotations in all layers on words."""
    rng = random.Random(seed)
    return [_in_all_layers(rng, Sentence(sentence.words, id=sentence.id)) for sentence in sentences]


def _in_all_layers(rng: random.Random, sentence: Sentence) -> Sentence:
    layers = ("tags", "upos", "entities", "arcs", "tree", "frames")
    while any(sentence.layer(layer) is None for layer in layers):
        other = _annotated(rng, sentence.words, sentence.id)
        sentence = other.with_layers(
            {layer: value for layer in layers if (value := sentence.layer(layer)) is not None}
        )
    return sentence


def _sentence(rng: random.Random, words: tuple[str, ...], name: str) -> Sentence:
    return _annotated(rng, tuple(rng.choices(words, k=rng.randint(1, 7))), name)


def _annotated(rng: random.Random, found: tuple[str, ...], name: str) -> Sentence:
    size = len(found)
    relations = _labels(rng, size)
    heads = tuple(rng.randint(1, number) if number else 0 for number in range(size))
    predicates = rng.sample(range(size), rng.randint(0, min(size, 3)))
    frames = tuple(Frame(place, rng.choice((None, *LABELS)), _spans(rng, size)) for place in predicates)
    label = rng.choice(({}, {"classify": rng.choice(LABELS)}, {"regress": rng.uniform(-5, 5)}))
    text = "".join(word + rng.choice(("", " ")) for word in found).strip()
    return Sentence(
        found,
        label,
        tags=_labels(rng, size),
        upos=_labels(rng, size),
        entities=rng.choice((None, _spans(rng, size))),
        arcs=None if relations is None else Arcs(heads, relations),
        tree=rng.choice((None, _tree(rng, found))),
        frames=rng.choice((None, frames)),
        deps=rng.choice((None, _graph(rng, size))),
        id=name,
        text=rng.choice(("", text)),
    )


def _labels(rng: random.Random, size: int) -> tuple[str, ...] | None:
    return rng.choice((None, tuple(rng.choices(LABELS, k=size))))


def _spans(rng: random.Random, size: int) -> tuple[Span, ...]:
    """Spans without overlaps, in order."""
    cuts = sorted(rng.sample(range(size + 1), rng.randint(0, min(size + 1, 5))))
    spans = [Span(start, end, rng.choice(LABELS)) for start, end in pairwise(cuts)]
    return tuple(span for span in spans if rng.random() < 0.7)


def _graph(rng: random.Random, size: int) -> Graph:
    """Graphs, also without arcs, and with several between two words."""
    drawn = [
        Arc(rng.randint(1, size), rng.randint(0, size), rng.choice(LABELS))
        for _ in range(rng.randint(0, 2 * size))
    ]
    return Graph(tuple({arc for arc in drawn if arc.dependent != arc.head}))


def _tree(rng: random.Random, words: tuple[str, ...]) -> Tree:
    nodes = [Tree(rng.choice(LABELS), word) for word in words]
    for _ in range(rng.randint(0, 6)):
        start = rng.randrange(len(nodes))
        end = rng.randint(start + 1, len(nodes))
        nodes[start:end] = [Tree(rng.choice(LABELS), tuple(nodes[start:end]))]
    return Tree("TOP", tuple(nodes))
