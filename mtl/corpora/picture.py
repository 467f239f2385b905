"""Annotated sentences as text: a picture for the eye, and CoNLL-U."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.text import Text
from rich.tree import Tree as Branch

from mtl.corpora.formats.jsonl import to_json
from mtl.errors import InputError
from tasks.sentence import Arcs, Frame, Sentence, Span
from tasks.tree import Tree

_WIDE = 10_000


def picture(sentence: Sentence) -> str:
    """The layers that are annotated, one below the other; `None` layers are left out.

    Words with their tags, entities in brackets; arcs as a tree from the root down, each word with its number
    and relation; constituents as a tree, the lowest in bracket notation; and a line per frame.
    """
    parts = [_line(sentence)]
    if sentence.arcs is not None:
        parts.append(_drawn(_arcs(sentence.words, sentence.arcs)))
    if sentence.tree is not None:
        parts.append(_drawn(_constituents(sentence.tree)))
    if sentence.frames is not None:
        frames = [_frame(sentence.words, frame) for frame in sentence.frames]
        parts.append("\n".join(["frames", *frames] if frames else ["frames: none"]))
    return "\n".join(parts) + "\n"


def to_conllu(sentence: Sentence) -> str:
    """One sentence in CoNLL-U, without the empty line that parts it from the next.

    What has no column there stands elsewhere: entities as `NER=B-PER` in MISC, the tree in `# tree`, frames
    in `# frames` as JSON. Blanks that would break a column become one space. Raises `InputError` where
    entities overlap, for which there is no BIO.
    """
    record = to_json(sentence)
    words = [_cell(word) for word in sentence.words]
    comments = [f"# sent_id = {_cell(sentence.id)}"] if sentence.id else []
    comments.append(f"# text = {' '.join(words)}")
    if sentence.tree is not None:
        comments.append(f"# tree = {record['tree']}")
    if sentence.frames is not None:
        comments.append(f"# frames = {json.dumps(record['frames'], ensure_ascii=False)}")
    blank = ["_"] * len(words)
    columns = (
        [str(number) for number in range(1, len(words) + 1)],
        words,
        blank,
        [_cell(tag) for tag in sentence.upos or blank],
        [_cell(tag) for tag in sentence.tags or blank],
        blank,
        blank if sentence.arcs is None else [str(head) for head in sentence.arcs.heads],
        blank if sentence.arcs is None else [_cell(relation) for relation in sentence.arcs.relations],
        blank,
        blank if sentence.entities is None else _bio(sentence, sentence.entities),
    )
    rows = ["\t".join(row) for row in zip(*columns, strict=True)]
    return "\n".join([*comments, *rows]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()) or "_"


def _bio(sentence: Sentence, entities: Sequence[Span]) -> list[str]:
    tags = ["NER=O"] * len(sentence)
    for start, end, label in entities:
        if any(tag != "NER=O" for tag in tags[start:end]):
            raise InputError(
                f"sentence '{sentence.id}': overlapping entities at word {start + 1} have no BIO in CoNLL-U; "
                "write JSON instead"
            )
        tags[start:end] = [f"NER=B-{label}", *[f"NER=I-{label}"] * (end - start - 1)]
    return tags


def _line(sentence: Sentence) -> str:
    words = [*sentence.words] if sentence.tags is None else _tagged(sentence.words, sentence.tags)
    opening: defaultdict[int, str] = defaultdict(str)
    closing: defaultdict[int, str] = defaultdict(str)
    # The longest first, so that an entity within another opens after it.
    for start, end, label in sorted(sentence.entities or (), key=lambda span: (span.start, -span.end)):
        opening[start] += f"[{label} "
        closing[end - 1] += "]"
    return " ".join(opening[place] + word + closing[place] for place, word in enumerate(words))


def _tagged(words: Sequence[str], tags: Sequence[str]) -> list[str]:
    return [f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)]


def _arcs(words: Sequence[str], arcs: Arcs) -> Branch:
    dependents = defaultdict(list)
    for number, head in enumerate(arcs.heads, start=1):
        dependents[head].append(number)
    root = Branch("dependencies")
    waiting = [(root, 0)]
    while waiting:
        branch, head = waiting.pop()
        for number in dependents[head]:
            label = Text(f"{words[number - 1]} ({number}) {arcs.relations[number - 1]}")
            waiting.append((branch.add(label), number))
    return root


def _constituents(tree: Tree) -> Branch:
    root = Branch("constituents")
    waiting = [(root, tree)]
    while waiting:
        branch, node = waiting.pop()
        if isinstance(node.children, str) or all(child.is_preterminal for child in node.children):
            branch.add(Text(str(node)))
            continue
        inner = branch.add(Text(node.label or "()"))
        waiting += [(inner, child) for child in reversed(node.children)]
    return root


def _drawn(branch: Branch) -> str:
    out = StringIO()
    Console(file=out, width=_WIDE, color_system=None, emoji=False, highlight=False).print(branch)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _frame(words: Sequence[str], frame: Frame) -> str:
    arguments = [f"{label} = {' '.join(words[start:end])}" for start, end, label in sorted(frame.arguments)]
    return "  ".join([f"  {frame.sense or words[frame.predicate]} ({frame.predicate + 1})", *arguments])
