"""Annotated sentences drawn as text for a terminal."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from operator import attrgetter
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree as Branch

from mtl.tasks.catalogue import in_order_of_catalogue
from mtl.tasks.sentence import Arcs, Frame, Graph, Sentence, is_label
from mtl.tasks.tree import Tree

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
