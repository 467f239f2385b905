"""Graphs in the column DEPS of CoNLL-U, without empty nodes.

An empty node (8.1) stands for a word that is not said. It is not a word here: each path from a word or the
root over empty nodes to a word becomes one arc, whose label joins the labels on the path with `>`. In `Ann
reads papers and Bob 5.1 books`, where 5.1 is a `conj` of `reads` and `Bob` its `nsubj`, `Bob` is a
`conj>nsubj` of `reads`. The evaluation of the shared tasks IWPT 2020 and 2021 follows this rule, and ELAS is
defined by it. No path passes an empty node twice. Paths that begin at an empty node without a head are left
out. A path may lead from a word to itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from mtl.tasks.sentence import Arc, Graph, Sentence

DEPS = "deps"
"""The layer that is read from the column DEPS."""
EMPTY = "empty node taken out of a graph, its arcs joined into labels such as 'conj>nsubj'"
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
