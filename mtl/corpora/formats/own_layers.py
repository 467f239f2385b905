"""Layers without a column in CoNLL-U, which this program writes into comments and MISC; graphs in DEPS.

Words are counted from 1, as in the file, and a span has its first and its last word:

    # tree = (TOP (S (NP (PRP We)) (VP (VBD ate))))
    # frames = [{"word": 2, "sense": "eat.01", "arguments": [[1, 1, "ARG0"]]}]
    # classify = order          (a label of the whole sentence, by its task)
    # id_made_up = true         (the sentence's id is a number that the program gave it)
    # document = w01            (the document that the sentence is from)
    # second = 3                (the word at which a pair's second sentence begins)
    # label intent = order      (a label under a name of its own)
    # layer slots = [[0, 1, "TIME"]]        (a layer on words under a name of its own)
    # label "my intent" = "2"   (what would be read as something else is a string of JSON)

Layers with names of their own are written as in JSON lines: words are counted from 0, and the end of a span
is exclusive. The graph in the column DEPS (`enhanced`) has no comment. MISC has `NER=B-PER` and
`SpaceAfter=No`.

An empty node (8.1) stands for a word that is not said. It is not a word here: each path from a word or the
root over empty nodes to a word becomes one arc, whose label joins the labels on the path with `>`. In `Ann
reads papers and Bob 5.1 books`, where 5.1 is a `conj` of `reads` and `Bob` its `nsubj`, `Bob` is a
`conj>nsubj` of `reads`. The evaluation of the shared tasks IWPT 2020 and 2021 follows this rule, and ELAS is
defined by it. No path passes an empty node twice. Paths that begin at an empty node without a head are left
out and counted. A path may lead from a word to itself.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mtl.corpora.formats.columns import Line, cell
from mtl.corpora.formats.jsonl import (
    OWN_KEYS,
    SKIPPED,
    frames_from,
    layer_from_json,
    layer_to_json,
    letters,
    tree_from,
)
from mtl.corpora.formats.phrase_structure import to_brackets
from mtl.errors import InputError
from mtl.tasks.catalogue import SENTENCE_TASKS
from mtl.tasks.sentence import FEATS, LEMMAS, Arc, Frame, Graph, MadeUpId, Sentence, is_label, is_per_word
from mtl.tasks.sentence_tasks import number_of
from mtl.tasks.spans import TagError, tags_of

ARCS_MADE_UP = "# arcs_made_up = true"
"""The comment of a sentence whose arcs only hold the place of a tree, which a scorer needs."""
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
            tags = tags_of(sentence.entities, len(sentence))
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
    if f"# {name} = {value}" == ARCS_MADE_UP:
        return {"arcs": None}
    if name == "id_made_up" and value == "true":
        return {"id": MadeUpId(sentence.id)}
    if name == "document":
        return {"document": text}
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
                {
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


DEPS = "deps"
"""The layer that is read from the column DEPS."""
EMPTY = "empty node taken out of a graph, its arcs joined into labels such as 'conj>nsubj'"
NO_WAY = "arc from an empty node that no arc leads to, which is left out"
_HEAD = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_MOST_STEPS = 10_000
"""Maximum number of steps of paths over empty nodes in a sentence; it can be exponential in the nodes."""
_MOST_NODES = 9
"""Maximum number of empty nodes written after one word: UD's tools read 5.10 as 5.1."""


class NodeArc(NamedTuple):
    """An arc between nodes, by their ids in the file."""

    dependent: str
    head: str
    label: str


def node_arcs(node: str, cell: str, nodes: Collection[str]) -> Iterator[NodeArc]:
    """The arcs of one node; raises `ValueError` unless the cell lists HEAD:LABEL with heads in `nodes`."""
    if cell == "_":
        return
    for item in cell.split("|"):
        head, colon, label = item.partition(":")
        if not colon or not _HEAD.fullmatch(head):
            raise ValueError(f"DEPS {item!a}; write HEAD:LABEL for each head, with '|' between, or '_'")
        if head != "0" and head not in nodes:
            raise ValueError(f"DEPS {item!a}: the sentence has no node {head}; correct the head")
        yield NodeArc(node, head, label)


def collapsed(arcs: Iterable[NodeArc]) -> Graph:
    """The graph on words; raises `ValueError` for a repeated arc, and for more paths than can be intended."""
    above: dict[str, list[NodeArc]] = defaultdict(list)
    direct: list[Arc] = []
    begun: list[tuple[NodeArc, tuple[str, ...]]] = []
    for arc in arcs:
        if "." in arc.dependent:
            above[arc.dependent].append(arc)
        elif "." in arc.head:
            begun.append((arc, (arc.head,)))
        else:
            direct.append(_arc(arc))
    over_nodes: set[Arc] = set()
    steps = 0
    while begun:
        path, passed = begun.pop()
        for arc in above[path.head]:
            steps += 1
            longer = NodeArc(path.dependent, arc.head, f"{arc.label}>{path.label}")
            if "." not in arc.head:
                over_nodes.add(_arc(longer))
            elif arc.head not in passed:
                begun.append((longer, (*passed, arc.head)))
        if steps > _MOST_STEPS:
            raise ValueError(f"more than {_MOST_STEPS:,} paths over the sentence's empty nodes; correct DEPS")
    return Graph((*direct, *over_nodes.difference(direct)))


def without_way(arcs: Sequence[NodeArc]) -> int:
    """The number of arcs from empty nodes to words that no path from a word or the root leads to."""
    rest = [arc for arc in arcs if "." in arc.head]
    above = [arc for arc in rest if "." in arc.dependent]
    reached = {arc.dependent for arc in arcs if "." in arc.dependent and "." not in arc.head}
    while new := {arc.dependent for arc in above if arc.head in reached} - reached:
        reached |= new
    return sum("." not in arc.dependent and arc.head not in reached for arc in rest)


class Deps(NamedTuple):
    """The column DEPS: a cell per word, and the ids and cells of empty nodes by the word before them."""

    words: list[str]
    empty: dict[int, list[tuple[str, str]]]


def deps_of(sentence: Sentence, empty_nodes: bool = True) -> Deps | None:
    """The column for the layer `deps`; `None` if there is no such layer or the column cannot hold it.

    It cannot hold a graph without arcs, or labels with a `|`. With `empty_nodes`, labels joined with `>` are
    written as paths over empty nodes again, which arcs with the same head and first labels share. Without it,
    they are written as they are, which is what ELAS is computed on.
    """
    graph = sentence.layer(DEPS)
    if not isinstance(graph, Graph) or not graph.arcs or any("|" in arc.label for arc in graph.arcs):
        return None
    items: list[list[tuple[tuple[int, ...], str]]] = [[] for _ in sentence.words]
    made: dict[tuple[int, str], str] = {}
    empty: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for dependent, head, label in graph.arcs:
        above, parts = str(head), label.split(">")
        if not empty_nodes or not all(parts):
            parts = [label]
        for end, part in enumerate(parts[:-1], start=1):
            begun = (head, ">".join(parts[:end]))
            if begun not in made:
                places = (*range(head, len(items) + 1), *range(head))
                place = next((place for place in places if len(empty[place]) < _MOST_NODES), head)
                made[begun] = f"{place}.{len(empty[place]) + 1}"
                empty[place].append((made[begun], f"{above}:{part}"))
            above = made[begun]
        items[dependent - 1].append((tuple(map(int, above.split("."))), parts[-1]))
    cells = [
        "|".join(f"{'.'.join(map(str, head))}:{label}" for head, label in sorted(item)) for item in items
    ]
    return Deps([cell or "_" for cell in cells], empty)


def _arc(arc: NodeArc) -> Arc:
    return Arc(int(arc.dependent), int(arc.head), arc.label)
