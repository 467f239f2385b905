"""Layers without a column in CoNLL-U, which this program writes into comments and MISC, and reads back.

Words are counted from 1, as in the file, and a span has its first and its last word:

    # tree = (TOP (S (NP (PRP We)) (VP (VBD ate))))
    # frames = [{"word": 2, "sense": "eat.01", "arguments": [[1, 1, "ARG0"]]}]
    # classify = order          (a label of the whole sentence, by its task)
    # second = 3                (the word at which a pair's second sentence begins)
    # label intent = order      (a label under a name of its own)
    # layer slots = [[0, 1, "TIME"]]        (a layer on words under a name of its own)
    # label "my intent" = "2"   (what would be read as something else is a string of JSON)

Layers with names of their own are written as in JSON lines: words are counted from 0, and the end of a span
is exclusive. The graph in the column DEPS (`enhanced`) has no comment. MISC has `NER=B-PER` and
`SpaceAfter=No`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mtl.corpora.formats.brackets import to_brackets
from mtl.corpora.formats.columns import Line, cell
from mtl.corpora.formats.enhanced import DEPS, deps_of
from mtl.corpora.formats.iob import TagError, to_bio
from mtl.corpora.formats.jsonl import (
    OWN_KEYS,
    SKIPPED,
    frames_from,
    layer_from_json,
    layer_to_json,
    letters,
    tree_from,
)
from mtl.errors import InputError
from mtl.tasks.catalogue import SENTENCE_TASKS
from mtl.tasks.regress import number_of
from mtl.tasks.sentence import FEATS, LEMMAS, Frame, Sentence, is_label, is_per_word

_COMMENT = re.compile(r"#\s*([\w-]+)\s*=[ \t]?(.*)")
_NAMED = re.compile(r'#\s*(label|layer)\s+("(?:[^"\\]|\\.)*"|[^\s="][^\s=]*)\s*=[ \t]?(.*)')
_NO_PLAIN_NAME = re.compile(r'[\s="]')
_PLAIN_LABEL = re.compile(r'[^\s"]([^\x00-\x1f\x7f-\x9f]*\S)?')
_WITH_COLUMN = ("tags", "upos", LEMMAS, FEATS)
_BAR = {"\\": "\\\\", "|": "\\p"}
"""How MISC writes a bar, which separates its items, and a backslash, which escapes it."""
_ESCAPED = re.compile(r"\\([\\p])")


def comments_of(sentence: Sentence) -> Iterator[str]:
    """The comments for layers that have no column.

    A comment such as `# tags = _` is for labels that are all `_`: in a column, they would mean no labels.
    """
    for layer in _WITH_COLUMN:
        if set(in_column(sentence, layer) or ()) == {"_"}:
            yield f"# {layer} = _"
    if sentence.tree is not None:
        yield f"# tree = {to_brackets(sentence.tree)}"
    if sentence.frames is not None:
        frames = [
            {
                "word": frame.predicate + 1,
                "sense": frame.sense,
                "arguments": [[start + 1, end, label] for start, end, label in frame.arguments],
            }
            for frame in sentence.frames
        ]
        yield f"# frames = {json.dumps(frames, ensure_ascii=False)}"
    others = {name: value for name, value in sorted(sentence.layers.items()) if name not in OWN_KEYS}
    for name, value in others.items():
        if name in SENTENCE_TASKS:
            yield f"# {name} = {value}"
        elif is_label(value):
            yield f"# label {_written(name)} = {_written_label(value)}"
    in_deps = deps_of(sentence) is not None
    for name, value in others.items():
        in_a_column = in_deps if name == DEPS else name in _WITH_COLUMN and is_per_word(value)
        if not in_a_column and not is_label(value):
            yield f"# layer {_written(name)} = {json.dumps(layer_to_json(value), ensure_ascii=False)}"
    if sentence.second is not None:
        yield f"# second = {sentence.second + 1}"


def _written(name: str) -> str:
    """The name of a layer as comments write it."""
    return json.dumps(name) if _NO_PLAIN_NAME.search(name) else name


def _written_label(label: str | float) -> str:
    if not isinstance(label, str) or (_PLAIN_LABEL.fullmatch(label) and number_of(label) is None):
        return str(label)
    return json.dumps(label, ensure_ascii=False)


def _read_label(text: str) -> str | float:
    """The label that a comment gives a name of its own."""
    if text.startswith('"'):
        with suppress(ValueError):  # earlier versions wrote quotes as they are
            return str(json.loads(text))
    number = number_of(text)
    return text if number is None else number


def in_column(sentence: Sentence, layer: str) -> tuple[str, ...] | None:
    """The values of a layer with a column in CoNLL-U; `None` unless it is annotated with a text per word."""
    value = sentence.layers.get(layer)
    return value if is_per_word(value) else None


def misc_of(sentence: Sentence) -> list[str]:
    """The column MISC; raises `InputError` for overlapping entities, which BIO cannot represent."""
    items: list[list[str]] = [[] for _ in sentence.words]
    if sentence.entities is not None:
        try:
            tags = to_bio(sentence.entities, len(sentence))
        except TagError as error:
            raise InputError(f"sentence '{sentence.id}': {error} in CoNLL-U; write JSON instead") from error
        for item, tag in zip(items, tags, strict=True):
            item.append(f"NER={''.join(_BAR.get(character, character) for character in cell(tag))}")
    for item, joined in zip(items, _joined_to_next(sentence), strict=True):
        if joined:
            item.append("SpaceAfter=No")
    return ["|".join(item) or "_" for item in items]


def misc_values(misc: str, key: str) -> list[str]:
    """The values of a key in a column MISC."""
    if key not in misc:  # the quick way, since most have no such key
        return []
    items = (item.partition("=") for item in misc.split("|"))
    return [
        _ESCAPED.sub(lambda match: "|" if match[1] == "p" else "\\", value)
        for name, equals, value in items
        if equals and name.strip(" ") == key
    ]


def _joined_to_next(sentence: Sentence) -> list[bool]:
    """For each word, whether the text has no white space between it and the next one."""
    if not is_spelled(sentence.text, sentence.words):
        return [False] * len(sentence)
    text, joined, position = sentence.text, [], 0
    for word in sentence.words:
        for character in word:
            if not character.isspace():
                while text[position].isspace():
                    position += 1
                position += 1
        joined.append(position < len(text) and not text[position].isspace())
    return joined


def is_spelled(text: str, words: Sequence[str]) -> bool:
    """Whether the words spell the text, apart from white space."""
    return bool(text) and letters(text) == letters("".join(words))


def with_own_layers(sentence: Sentence, comments: Sequence[Line]) -> tuple[Sentence, tuple[int, str] | None]:
    """The sentence with what comments add, and the line and fault of a wrong comment (`None` without one).

    The text is kept only if it differs from the words separated by blanks.
    """
    found = {match[1]: (line, match[2]) for line, comment in comments if (match := _COMMENT.match(comment))}
    layers = dict(sentence.layers)
    for line, comment in comments:
        if match := _NAMED.match(comment):
            kind, written, value = match.groups()
            try:
                name = json.loads(written) if written.startswith('"') else written
                if name in layers:
                    raise ValueError(f"the sentence already has a layer '{name}'")
                if name in OWN_KEYS:
                    raise ValueError("the name is taken")
                if kind == "layer":
                    layers[name] = layer_from_json(json.loads(value), sentence.words, name)
                else:
                    layers[name] = _read_label(value)
            except (ValueError, TypeError, RecursionError) as error:
                what = f"the comment '# {kind} {written}' is not as mtl writes it ({error}): fix it"
                return sentence, (line, what)
    changes: dict[str, Any] = {"layers": layers}
    for name, (line, value) in found.items():
        try:
            changes |= _change(sentence, name, value)
        except ValueError as error:
            what = f"the comment '# {name}' is not as mtl writes it ({error}): fix it, or rename the comment"
            return sentence, (line, what)
    return replace(sentence, **changes), None


def _change(sentence: Sentence, name: str, value: str) -> dict[str, Any]:
    """The fields and layers of a sentence that a comment changes; empty unless this program wrote it."""
    words = sentence.words
    text = value.strip(" ")
    if name in SENTENCE_TASKS:
        return {name: _label(name, value)}
    if name == "text" and text != " ".join(words) and is_spelled(text, words):
        return {"text": text}
    if name in _WITH_COLUMN:  # all labels are `_`, which the column takes for none
        return {name: ("_",) * len(words)} if value == "_" and sentence.layer(name) is None else {}
    if name == "skipped":
        return {"notes": (*sentence.notes, SKIPPED)}
    if name == "tree":
        return {"tree": tree_from(value, words, "tree")}
    if name == "frames":
        return {"frames": _frames(value, words)}
    return {"second": _second(value, len(sentence))} if name == "second" else {}


def _frames(text: str, words: Sequence[str]) -> tuple[Frame, ...]:
    try:
        values = json.loads(text)
        return frames_from(
            [
                value  # written by an earlier version, which counted from 0
                if "predicate" in value
                else {
                    "predicate": value["word"] - 1,
                    "sense": value["sense"],
                    "arguments": [[first - 1, last, label] for first, last, label in value["arguments"]],
                }
                for value in values
            ],
            tuple(words),
            "frames",
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            'a list of {"word": 2, "sense": null, "arguments": [[1, 1, "ARG0"]]}, '
            f"words counted from 1; here {error}"
        ) from error


def _second(text: str, words: int) -> int:
    if not text.isascii() or not text.isdigit() or not 1 < int(text) <= words:
        raise ValueError(f"the second sentence of a pair begins at word 2 to {words}, not {text!r}")
    return int(text) - 1


def _label(task: str, text: str) -> str | float:
    value = SENTENCE_TASKS[task].value_of(text)
    what = SENTENCE_TASKS[task].fault(value)
    if what is not None:
        raise ValueError(what)
    return value
