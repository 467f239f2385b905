"""Conditions for a sentence that tasks can be trained on and every format can hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from mtl.corpora.formats.lines import CONTROL
from mtl.tasks.catalogue import SENTENCE_TASKS
from mtl.tasks.in_words import as_json, counted
from mtl.tasks.regress import Regress
from mtl.tasks.sentence import Arcs, Frame, Graph, Sentence, Span, is_label, is_per_word
from mtl.tasks.translate import Translate

_TAGS = ("tags", "upos")
"""The layers with a label per word that may not hold white space."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_BLANK_OR_UNPRINTABLE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Fault(NamedTuple):
    """What is wrong with a sentence, and at which word (from 0; `None`: not at a single word)."""

    word: int | None
    what: str


def fault(sentence: Sentence) -> Fault | None:
    """The first fault of a sentence that formats or tasks cannot hold, or `None`.

    Words are not empty, and hold no control character and no half of a surrogate pair. Spaces are allowed
    within a word, within a label per word other than a tag (lemmas may have those of words), and within a
    label of the whole sentence under a name of its own (it may be a translation). Other labels hold no white
    space. A label of a whole sentence is one that its task allows; a pair has only such labels. Arcs form a
    tree with one root. In a graph, an arc from a word to itself is a path over empty nodes, with a `>` in its
    label. Names of layers hold no control character. Overlapping entities, overlapping arguments, several
    frames at one predicate and several arcs between two words are not faults: tasks leave out what they
    cannot represent, and count it.
    """
    if not all(sentence.words) or any(map(str.isspace, sentence.words)):
        number = next(number for number, word in enumerate(sentence.words) if not word.strip())
        word = sentence.words[number]
        what = f"is empty, {word!a}" if word else "is empty"
        return Fault(number, f"word {number + 1} {what}; give it a form, or take it out")
    if _UNPRINTABLE.search("".join(sentence.words)):
        number, word = next(
            (number, word) for number, word in enumerate(sentence.words) if _UNPRINTABLE.search(word)
        )
        return Fault(number, f"word {number + 1}, {word!a}, holds a control character; take it out")
    if _UNPRINTABLE.search(sentence.id):
        return Fault(None, f"the id {sentence.id!a} holds a control character; take it out")
    if message := second_fault(sentence.second, len(sentence)):
        return Fault(None, message)
    # The quick way first: a corpus has a million labels, and nearly all of them are sound.
    if any(map(_label_fault, (label for _, _, label in _span_labels(sentence)))) or any(
        any(map(fault_of, labels)) for _, labels, fault_of in _word_labels(sentence)
    ):
        in_order = [
            *(
                (layer, word, fault_of(label))
                for layer, labels, fault_of in _word_labels(sentence)
                for word, label in enumerate(labels)
            ),
            *((layer, word, _label_fault(label)) for layer, word, label in _span_labels(sentence)),
        ]
        for layer, number, message in in_order:
            if message is not None:
                return Fault(number, f"'{layer}' at word {number + 1}: {message}")
    return next(filter(None, (_layer_fault(*layer, sentence) for layer in sentence.layers.items())), None)


def _layer_fault(name: str, value: Any, sentence: Sentence) -> Fault | None:
    if _UNPRINTABLE.search(name):
        return Fault(None, f"the name {name!a} holds a control character; take it out")
    if is_label(value):
        message = label_fault(name, value)
        return None if message is None else Fault(None, f"the label of {name}: {message}")
    if sentence.second is not None:
        return Fault(None, f"a pair of sentences has only labels: take '{name}' or 'second' out")
    if isinstance(value, Graph):
        return _graph_fault(name, value)
    return _arcs_fault(value.heads) if isinstance(value, Arcs) else None


def second_fault(value: Any, words: int) -> str | None:
    """What is wrong with a value as the start of a pair's second sentence, or `None`."""
    if value is not None and words < 2:
        return "'second' is for pairs of sentences, and here is one word; leave it out"
    if value is not None and (type(value) is not int or not 0 < value < words):
        return f"'second' is {as_json(value)}; the second sentence of a pair begins at word 1 to {words - 1}"
    return None


def label_fault(name: str, value: Any) -> str | None:
    """What is wrong with a value as the label of a whole sentence under a name, or `None`."""
    if name in SENTENCE_TASKS:
        return (_label_fault(value) if isinstance(value, str) else None) or SENTENCE_TASKS[name].fault(value)
    if isinstance(value, str):
        control = CONTROL.search(value)
        return f"it holds a control character, {control.group()!a}; take it out" if control else None
    return (
        f"{as_json(value)} is not a text; write it in quotes"
        if name == Translate.name
        else Regress.fault(value)
    )


def _word_labels(sentence: Sentence) -> Iterator[tuple[str, tuple[str, ...], Callable[[str], str | None]]]:
    """Each layer with a label per word: its key in JSON, its labels, and what finds the fault of a label."""
    for name, value in sentence.layers.items():
        if isinstance(value, Arcs):
            yield "relations" if name == "arcs" else name, value.relations, _label_fault
        elif is_per_word(value):
            yield name, value, _label_fault if name in _TAGS else _text_fault


def _span_labels(sentence: Sentence) -> Iterator[tuple[str, int, str]]:
    """Every label of spans, frames and graphs, with its key in JSON and its first word."""
    for name, value in sentence.layers.items():
        if isinstance(value, Graph):
            for dependent, _, label in value.arcs:
                yield name, dependent - 1, label
        for item in value if isinstance(value, tuple) else ():
            if isinstance(item, Span):
                yield name, item.start, item.label
            elif isinstance(item, Frame):
                if item.sense is not None:
                    yield "sense", item.predicate, item.sense
                for start, _, label in item.arguments:
                    yield "arguments", start, label


@lru_cache(maxsize=100_000)
def _label_fault(label: str) -> str | None:
    if not label:
        return "an empty label; name it, or leave the layer out of this sentence"
    if _BLANK_OR_UNPRINTABLE.search(label):
        return f"the label {label!a} holds white space or a control character; write it as one word"
    return None


@lru_cache(maxsize=100_000)
def _text_fault(label: str) -> str | None:
    if not label or label.isspace():
        return f"an empty label, {label!a}; name it, or leave the layer out of this sentence"
    if _UNPRINTABLE.search(label):
        return f"the label {label!a} holds a control character; take it out"
    return None


def _arcs_fault(heads: Sequence[int]) -> Fault | None:
    if not heads:
        return Fault(None, "a dependency tree without words; leave its layer out")
    on_cycle = cycle(heads)
    if on_cycle is not None:
        return Fault(on_cycle, f"the heads form a cycle through word {on_cycle + 1}; make them a tree")
    roots = [number for number, head in enumerate(heads) if head == 0]
    if len(roots) != 1:
        first, second = roots[0] + 1, roots[1] + 1
        return Fault(
            roots[1],
            f"{counted(len(roots), 'root')}, the first at words {first} and {second}; "
            "a dependency tree has one: give the others a head",
        )
    return None


def _graph_fault(name: str, graph: Graph) -> Fault | None:
    for arc in graph.arcs:
        if arc.dependent == arc.head and ">" not in arc.label:
            what = f"'{name}' has the arc {list(arc)}; give word {arc.dependent} another head"
            return Fault(arc.dependent - 1, what)
    return None


def cycle(heads: Sequence[int]) -> int | None:
    """A word (from 0) on a cycle of heads (from 1, 0 the root), or `None` if every word reaches the root."""
    seen = [0] * (len(heads) + 1)
    for start in range(1, len(heads) + 1):
        word = start
        while word and not seen[word]:
            seen[word] = start
            word = heads[word - 1]
        if word and seen[word] == start:
            return word - 1
    return None
