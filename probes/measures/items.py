"""Probe targets: labelled spans of words, also for arcs and arguments, indexed once per corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mtl.probes.measures.record import ROOT, HeadRecords, ragged
from mtl.tasks.lemma_scripts import scripts_of
from mtl.tasks.sentence import LEMMAS, Sentence


class Item(NamedTuple):
    """A labelled span of words, without the one at `end`; `anchor` is the word that it depends on, if any."""

    start: int
    end: int
    label: str
    anchor: int = ROOT


class Placed(NamedTuple):
    """The items of a batch, and their places among its words and queries."""

    number: Int[Tensor, " item"]
    """The numbers of the items in the corpus."""
    label: Int[Tensor, " item"]
    start: Int[Tensor, " item"]
    """The index of the first word among the words of the batch."""
    length: Int[Tensor, " item"]
    """The number of words."""
    anchor: Int[Tensor, " item"]
    """The anchor's place in its sentence, or `ROOT`."""
    in_sentence: Int[Tensor, " item"]
    """The first word's place in its sentence."""
    at_anchor: Int[Tensor, " item"]
    """The index of the anchor among the queries of the batch."""


@dataclass(frozen=True, slots=True)
class Items:
    """The items of a corpus, sentence after sentence."""

    names: tuple[str, ...]
    """The labels, sorted."""
    label: Int[Tensor, " item"]
    start: Int[Tensor, " item"]
    end: Int[Tensor, " item"]
    anchor: Int[Tensor, " item"]
    counts: Int[Tensor, " sentence"]
    """The number of items of each sentence."""

    def __len__(self) -> int:
        return len(self.label)

    def per_label(self) -> Int[np.ndarray, " label"]:
        """The number of items of each label."""
        return torch.bincount(self.label, minlength=len(self.names)).numpy()

    def within(self, records: HeadRecords) -> Placed:
        """The items of a batch of records."""
        device = records.row.device
        sentences = records.sentences.cpu()
        counts = self.counts[sentences]
        number = ragged((self.counts.cumsum(0) - self.counts)[sentences], counts)
        begin = records.starts.repeat_interleave(counts.to(device))
        local, anchor = self.start[number].to(device), self.anchor[number].to(device)
        start = begin + local
        return Placed(
            number.to(device),
            self.label[number].to(device),
            start,
            (self.end - self.start)[number].to(device),
            anchor,
            local,
            # The root attends from the window that owns its dependent.
            torch.where(anchor == ROOT, len(records.row) + records.row[start], begin + anchor),
        )


def index(
    sentences: Sequence[Sentence],
    items_of: Callable[[Sentence], Iterable[Item]],
    names: Iterable[str] | None = None,
) -> Items:
    """Index a corpus; `names`: the labels, by default those that occur."""
    listed = [list(items_of(sentence)) for sentence in sentences]
    every = [item for items in listed for item in items]
    inventory = tuple(sorted({item.label for item in every} if names is None else set(names)))
    number = {name: position for position, name in enumerate(inventory)}
    return Items(
        inventory,
        label=torch.tensor([number[item.label] for item in every], dtype=torch.long),
        start=torch.tensor([item.start for item in every], dtype=torch.long),
        end=torch.tensor([item.end for item in every], dtype=torch.long),
        anchor=torch.tensor([item.anchor for item in every], dtype=torch.long),
        counts=torch.tensor([len(items) for items in listed], dtype=torch.long),
    )


def tags(sentence: Sentence) -> Iterator[Item]:
    """Every word with its label."""
    for word, tag in enumerate(sentence.tags or ()):
        yield Item(word, word + 1, tag)


def scripts(sentence: Sentence) -> Iterator[Item]:
    """Every word that has a script, with the script that makes its lemma."""
    for word, edits in enumerate(scripts_of(sentence.words, sentence.layer(LEMMAS))):
        if edits is not None:
            yield Item(word, word + 1, edits)


def entities(sentence: Sentence) -> Iterator[Item]:
    """Every named entity."""
    return (Item(*span) for span in sentence.entities or ())


def arcs(sentence: Sentence) -> Iterator[Item]:
    """Every word with its relation, anchored at its head."""
    if sentence.arcs is not None:
        for word, (head, relation) in enumerate(
            zip(sentence.arcs.heads, sentence.arcs.relations, strict=True)
        ):
            yield Item(word, word + 1, relation, head - 1)


def graph_arcs(sentence: Sentence) -> Iterator[Item]:
    """Every arc of a graph: its dependent, anchored at its head; several for a word with several heads."""
    graph = sentence.layer("deps")
    for dependent, head, label in () if graph is None else graph.arcs:
        yield Item(dependent - 1, dependent, label, head - 1)


def arguments(sentence: Sentence) -> Iterator[Item]:
    """Every argument, anchored at its predicate; V (the predicate itself) is no argument."""
    for frame in sentence.frames or ():
        for span in frame.arguments:
            yield Item(*span, frame.predicate)


def lowest_constituents(sentence: Sentence) -> Iterator[Item]:
    """Every constituent whose children are all preterminals (height 3)."""
    waiting, start = [] if sentence.tree is None else [sentence.tree], 0
    while waiting:
        node = waiting.pop()
        if isinstance(node.children, str):
            start += 1
        elif all(child.is_preterminal for child in node.children):
            yield Item(start, start + len(node.children), node.label)
            start += len(node.children)
        else:
            waiting.extend(reversed(node.children))


def classes(sentence: Sentence) -> Iterator[Item]:
    """The whole sentence with its class (`Sentence.labels`, under `classify`)."""
    label = sentence.layer("classify")
    if label is not None:
        yield Item(0, len(sentence), label)


class ProbeTarget(NamedTuple):
    """Which items of a task are probed, and how."""

    items: Callable[[Sentence], Iterable[Item]]
    by: Literal["attention", "clustering"]
    """Items with an anchor are probed by attention, the others by clustering their vectors."""
    root: bool = False
    """Whether the first special token, which stands for the root, competes for the most attended word."""


BY_KIND: Mapping[str, ProbeTarget] = {
    "tags": ProbeTarget(tags, "clustering"),
    "lemmas": ProbeTarget(scripts, "clustering"),
    "spans": ProbeTarget(entities, "clustering"),
    "tree": ProbeTarget(arcs, "attention", root=True),
    "graph": ProbeTarget(graph_arcs, "attention", root=True),
    "constituents": ProbeTarget(lowest_constituents, "clustering"),
    "frames": ProbeTarget(arguments, "attention"),
    "class": ProbeTarget(classes, "clustering"),
}
"""The items that are probed in tasks of each kind (those on words: He & Choi 2021). Tasks of other kinds are
not probed."""
KINDS = {"pos": "tags", "ner": "spans", "dep": "tree", "con": "constituents", "srl": "frames"}
"""The kinds of the tasks on words that come with the program."""
PROBE_TARGETS: Mapping[str, ProbeTarget] = {task: BY_KIND[kind] for task, kind in KINDS.items()}
"""The items that are probed in the tasks of `KINDS`."""
