"""A corpus that is indexed for probing: its items, and the settings with which an encoder is probed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mtl.probes.measures.probe import ROOT, HeadRecords, ragged
from mtl.tasks.in_words import counted
from mtl.tasks.lemmas import scripts_of
from mtl.tasks.sentence import LEMMAS, Sentence
from mtl.tasks.tree import ROOTS, Tree


class LabelledSpan(NamedTuple):
    """A labelled span of words, without the one at `end`; `anchor` is the word that it depends on, if any."""

    start: int
    end: int
    label: str
    anchor: int = ROOT


class Placed(NamedTuple):
    """The items of a batch, and their places among its words and queries; on the CPU."""

    number: Int[Tensor, " item"]
    """The numbers of the items in the corpus."""
    label: Int[Tensor, " item"]
    word: Int[Tensor, " part"]
    """The indices, among the words of the batch, of all items' words."""
    item: Int[Tensor, " part"]
    """The index of each such word's item."""
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
        counts = self.counts[records.sentences]
        number = ragged((self.counts.cumsum(0) - self.counts)[records.sentences], counts)
        begin = records.starts.repeat_interleave(counts)
        local, anchor, length = self.start[number], self.anchor[number], (self.end - self.start)[number]
        start = begin + local
        return Placed(
            number,
            self.label[number],
            ragged(start, length),
            torch.arange(len(length)).repeat_interleave(length),
            length,
            anchor,
            local,
            # The root attends from the window that owns its dependent.
            torch.where(anchor == ROOT, len(records.row) + records.row[start], begin + anchor),
        )


def index(
    sentences: Sequence[Sentence],
    items_of: Callable[[Sentence], Iterable[LabelledSpan]],
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


def tags(sentence: Sentence) -> Iterator[LabelledSpan]:
    """Every word with its label."""
    for word, tag in enumerate(sentence.tags or ()):
        yield LabelledSpan(word, word + 1, tag)


def scripts(sentence: Sentence) -> Iterator[LabelledSpan]:
    """Every word that has a script, with the script that makes its lemma."""
    for word, edits in enumerate(scripts_of(sentence.words, sentence.layer(LEMMAS))):
        if edits is not None:
            yield LabelledSpan(word, word + 1, edits)


def named_entities(sentence: Sentence) -> Iterator[LabelledSpan]:
    """Every named entity."""
    return (LabelledSpan(*span) for span in sentence.entities or ())


def arcs(sentence: Sentence) -> Iterator[LabelledSpan]:
    """Every word that has a head with its relation, anchored at the head."""
    if sentence.arcs is not None:
        for word, (head, relation) in enumerate(
            zip(sentence.arcs.heads, sentence.arcs.relations, strict=True)
        ):
            if head is not None:
                yield LabelledSpan(word, word + 1, relation, head - 1)


def graph_arcs(sentence: Sentence) -> Iterator[LabelledSpan]:
    """Every arc of a graph: its dependent, anchored at its head; several for a word with several heads."""
    graph = sentence.layer("deps")
    for dependent, head, label in () if graph is None else graph.arcs:
        yield LabelledSpan(dependent - 1, dependent, label, head - 1)


def arguments(sentence: Sentence) -> Iterator[LabelledSpan]:
    """Every argument, anchored at its predicate; V (the predicate itself) is no argument."""
    for frame in sentence.frames or ():
        for span in frame.arguments:
            yield LabelledSpan(*span, frame.predicate)


def lowest_constituents(sentence: Sentence) -> Iterator[LabelledSpan]:
    """Every constituent whose children are all preterminals (height 3)."""
    waiting, start = [] if sentence.tree is None else [sentence.tree], 0
    while waiting:
        node = waiting.pop()
        if isinstance(node.children, str):
            start += 1
        elif all(child.is_preterminal for child in node.children):
            yield LabelledSpan(start, start + len(node.children), node.label)
            start += len(node.children)
        else:
            waiting.extend(reversed(node.children))


def _constituents(sentence: Sentence) -> Iterator[LabelledSpan]:
    """Every constituent, with its height in its label: `NP-3` has words only, `PP-4` such a part.

    The topmost node is none if its label says so (`ROOTS`).
    """
    if sentence.tree is None:
        return
    found: list[LabelledSpan] = []
    words = 0

    def placed(node: Tree, parts: list[_Extent]) -> _Extent:
        nonlocal words
        if node.is_preterminal:
            words += 1
            return _Extent(words - 1, 2)
        extent = _Extent(parts[0].start, 1 + max(part.height for part in parts))
        if node is not sentence.tree or node.label not in ROOTS:
            found.append(LabelledSpan(extent.start, words, f"{node.label}-{extent.height}"))
        return extent

    sentence.tree.fold(placed)
    yield from found


class _Extent(NamedTuple):
    """Where a node begins, and the number of nodes on its longest path down to a word, the word included."""

    start: int
    height: int


def ends_of_constituents(sentence: Sentence) -> Iterator[LabelledSpan]:
    """The last word of every constituent of two words or more, anchored at its first one."""
    for start, end, label, _ in _constituents(sentence):
        if end - start > 1:
            yield LabelledSpan(end - 1, end, label, start)


def classes(sentence: Sentence) -> Iterator[LabelledSpan]:
    """The whole sentence with its class (the layer `classify`)."""
    label = sentence.layer("classify")
    if label is not None:
        yield LabelledSpan(0, len(sentence), label)


Constituents = Literal["lowest", "all", "ends"]


class ProbeTarget(NamedTuple):
    """Which items of a task are probed, and how."""

    items: Callable[[Sentence], Iterable[LabelledSpan]]
    by: Literal["attention", "clustering"]
    """Items with an anchor are probed by attention, the others by clustering their vectors."""
    root: bool = False
    """Whether the first special token, which stands for the root, competes for the most attended word."""


BY_KIND: Mapping[str, ProbeTarget] = {
    "tags": ProbeTarget(tags, "clustering"),
    "lemmas": ProbeTarget(scripts, "clustering"),
    "spans": ProbeTarget(named_entities, "clustering"),
    "tree": ProbeTarget(arcs, "attention", root=True),
    "graph": ProbeTarget(graph_arcs, "attention", root=True),
    "constituents": ProbeTarget(lowest_constituents, "clustering"),
    "frames": ProbeTarget(arguments, "attention"),
    "class": ProbeTarget(classes, "clustering"),
}
"""The items that are probed in tasks of each kind (those on words: He & Choi 2021). Tasks of other kinds are
not probed."""
CONSTITUENTS: Mapping[Constituents, ProbeTarget] = {
    "lowest": BY_KIND["constituents"],
    "all": ProbeTarget(_constituents, "clustering"),
    "ends": ProbeTarget(ends_of_constituents, "attention"),
}
"""The items that can be probed in tasks of the kind `constituents`: those of height 3, as in He & Choi
(2021); all, by label and height; or the two ends of all, as in their script `con_all_levels.py`."""
KINDS = {"pos": "tags", "ner": "spans", "dep": "tree", "con": "constituents", "srl": "frames"}
"""The kinds of the tasks on words that come with the program."""
PROBE_TARGETS: Mapping[str, ProbeTarget] = {task: BY_KIND[kind] for task, kind in KINDS.items()}
"""The items that are probed in the tasks of `KINDS`."""


FREQUENT = 500
"""The number of words that count as frequent (Voita et al. 2019)."""


@dataclass(frozen=True, slots=True)
class ProbeCorpus:
    """The items probed per task, and the sentences from which centroids and word frequencies come."""

    sentences: Sequence[Sentence]
    items: Mapping[str, Items]
    fitted_sentences: Sequence[Sentence] | None
    """Other sentences that centroids and word frequencies are taken from; `None`: the same."""
    fitted: Mapping[str, Items]
    choice: str
    """Where centroids and word frequencies come from: `self` or `train`."""
    targets: Mapping[str, ProbeTarget]
    """The probe target of each task: which items it has, and how they are probed."""

    @classmethod
    def index(
        cls,
        sentences: Sequence[Sentence],
        fitted_sentences: Sequence[Sentence] | None = None,
        choice: str = "self",
        targets: Mapping[str, ProbeTarget] = PROBE_TARGETS,
    ) -> ProbeCorpus:
        """Index all tasks that have items in these sentences; `targets` says which items a task has.

        Raises `ValueError` if no task has any, or if a task to be fitted has none in `fitted_sentences`.
        """
        items = {name: index(sentences, target.items) for name, target in targets.items()}
        items = {name: indexed for name, indexed in items.items() if len(indexed)}
        if not items:
            raise ValueError(f"none of {counted(len(sentences), 'sentence')} has an annotation to probe for")
        if fitted_sentences is None:
            return cls(sentences, items, None, items, choice, targets)
        fitted: dict[str, Items] = {}
        for name in (name for name in items if targets[name].by == "clustering"):
            items_of = targets[name].items
            labels = {*items[name].names, *index(fitted_sentences, items_of).names}
            items[name] = index(sentences, items_of, labels)
            fitted[name] = index(fitted_sentences, items_of, labels)
            if not len(fitted[name]):
                raise ValueError(
                    f"no sentence to take centroids from is annotated for {name}: use --centroids=self"
                )
        return cls(sentences, items, fitted_sentences, fitted, choice, targets)

    def probed_by(self, way: Literal["attention", "clustering"], tasks: Sequence[str]) -> list[str]:
        """The tasks that are probed by attention, or by clustering."""
        return [name for name in tasks if self.targets[name].by == way]

    def rarest(self) -> Tensor:
        """The place of the rarest word of each sentence; see `rarest_words`."""
        counted = self.sentences if self.fitted_sentences is None else self.fitted_sentences
        frequencies = Counter(word for sentence in counted for word in sentence.words)
        return rarest_words(self.sentences, frequencies)


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """What probes are made from: the corpus, the mask, the shape of the encoder, and choices."""

    corpus: ProbeCorpus
    mask: str
    """The task of the mask; empty: all tasks."""
    tasks: tuple[str, ...]
    """The tasks that are probed under the mask."""
    layers: int
    heads: int
    head_dim: int
    final_special: bool = False
    """Whether the final special token competes for the most attended word."""
    seed: int = 0
    """Random seed for the shuffled labels and for the random projections that the records hold."""
    causal: bool = False
    """Whether heads see no later words."""
    draws: int = 0
    """The number of random projections of each layer's input in the records."""


def rarest_words(sentences: Sequence[Sentence], frequencies: Mapping[str, int]) -> Int[Tensor, " sentence"]:
    """The place of the rarest word of each sentence (the first on ties), -1 if that word is frequent.

    Voita et al. 2019. The `FREQUENT` most frequent words of `frequencies` count as frequent (ties in
    alphabetical order). Upper and lower case differ.
    """
    ranked = sorted(frequencies, key=lambda word: (-frequencies[word], word))
    frequent = set(ranked[:FREQUENT])
    places = []
    for sentence in sentences:
        counts = [frequencies.get(word, 0) for word in sentence.words]
        place = counts.index(min(counts))
        places.append(-1 if sentence.words[place] in frequent else place)
    return torch.tensor(places, dtype=torch.long)
