"""Measures of attention at word level: arcs, arguments and roles of heads, and their chance levels.

`ExampleProbe` keeps what every head attends to in a few sentences, and which arcs it hits there. An
`AttentionMatrix` is the attention of a head on one text, with the texts of its rows and columns.

Roles are measured at word level, and attention to special tokens is not distributed over the words. For
confident, positional and rare-word heads, only words are queries and keys. For syntactic heads, the first
special token stands for the root: it competes as a key, and is the anchor of the root's arc. With `final`,
the final special token competes, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mtl.probes.measures.corpus import Items, Placed, ProbeCorpus, ProbeSettings
from mtl.probes.measures.probe import NOTHING, HeadRecords, Probe, added_counts
from mtl.probes.sites import Site
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import EXAMPLES_SCHEMA, SENTENCES, ExampleArc, ExampleSentence
from mtl.tasks.sentence import Sentence


class Hits(NamedTuple):
    """Which heads connect which items with their anchors, in each direction."""

    from_anchor: Bool[Tensor, "item layer head"]
    """The anchor attends most to some word of the item."""
    from_item: Bool[Tensor, "item layer head"]
    """Some word of the item attends most to the anchor."""


def hits(attended: Int[Tensor, "query layer head"], items: Placed) -> Hits:
    """Per item, layer and head whether attention leads from the anchor to the item, and back."""

    def there(places: Int[Tensor, " _"]) -> Int[Tensor, " _"]:
        return places.to(attended.device, non_blocking=True)

    ahead = attended[there(items.at_anchor)] - there(items.in_sentence)[:, None, None]
    arrived = (attended[there(items.word)] == there(items.anchor[items.item])[:, None, None]).int()
    if len(items.word) > len(items.length):
        arrived = arrived.new_zeros(ahead.shape).index_add(0, there(items.item), arrived)
    return Hits((ahead >= 0) & (ahead < there(items.length)[:, None, None]), arrived > 0)


def columns(root: bool, final: bool, causal: bool = False) -> str:
    """The competing columns, in words; `causal`: only those up to the attending word."""
    return "+".join(["root"] * root + ["words"] + ["final"] * final) + causal * ", none ahead"


class AttentionProbe(Probe):
    """Per label the share of items that a head connects with their anchor, in either direction.

    He & Choi 2021. `root`: the first special token competes for the most attended word (in dependencies, it
    is the anchor of the root's arc). `final`: so does the final special token, and a head that attends most
    to it hits nothing. `causal`: heads see no later words, so only the later end of an arc can attend to the
    other one. The column `choice` says so, and the chance level has the same limit.
    """

    def __init__(
        self,
        task: str,
        items: Items,
        layers: int,
        heads: int,
        *,
        root: bool,
        final: bool,
        causal: bool = False,
    ) -> None:
        self.task, self.items, self.root, self.final, self.causal = task, items, root, final, causal
        self._hit = torch.zeros(len(items.names), layers, heads, dtype=torch.int64)
        self._count = torch.zeros(len(items.names), dtype=torch.int64)

    def update(self, records: HeadRecords) -> None:
        """Add a batch to the counts."""
        items = self.items.within(records)
        hit = hits(records.attended(root=self.root, final=self.final), items)
        labels = len(self.items.names)
        found = hits_by_label(hit.from_anchor | hit.from_item, items.label, labels)
        self._hit = added_counts(self._hit, found)
        self._count += torch.bincount(items.label, minlength=labels)

    def compute(self) -> pl.DataFrame:
        """The measure `attention`, its chance level `attention_offset`, and the mean length of arcs."""
        count = self._count.numpy()
        choice = columns(self.root, self.final, self.causal)
        offsets, _ = best_offset(self.items, self.causal)
        return pl.concat(
            [
                heads_table.rows(
                    "attention", self.task, self.items.names, hit_shares(self._hit, count), count, choice
                ),
                heads_table.rows("attention_offset", self.task, self.items.names, offsets, count, choice),
                heads_table.rows("attention_length", self.task, self.items.names, *mean_lengths(self.items)),
            ]
        )


def attention_probes(settings: ProbeSettings) -> Iterator[Probe]:
    """A probe for each task that is probed by attention."""
    for task in settings.corpus.probed_by("attention", settings.tasks):
        yield AttentionProbe(
            task,
            settings.corpus.items[task],
            settings.layers,
            settings.heads,
            root=settings.corpus.targets[task].root,
            final=settings.final_special,
            causal=settings.causal,
        )


def hits_by_label(
    hit: Bool[Tensor, "item layer head"], label: Int[Tensor, " item"], labels: int
) -> Int[Tensor, "label layer head"]:
    """Hits per label; `label` is on the CPU."""
    # Counts within a batch are exact in float32, which adds faster than integers.
    zeros = torch.zeros(labels, *hit.shape[1:], device=hit.device)
    return zeros.index_add(0, label.to(hit.device, non_blocking=True), hit.float()).long()


def hit_shares(hit: Int[Tensor, "label layer head"], count: Int[np.ndarray, " label"]) -> np.ndarray:
    """Hits over counts, 0 where nothing was counted."""
    return hit.double().cpu().numpy() / np.maximum(count, 1)[:, None, None]


class ConfidenceProbe(Probe):
    """The mean over words of the attention to the most attended word, from 0 to 1."""

    def __init__(self, task: str, layers: int, heads: int) -> None:
        self.task = task
        self._sum = torch.zeros(layers, heads, dtype=torch.float64)
        self._count = 0

    def update(self, records: HeadRecords) -> None:
        """Add a batch to the counts."""
        self._sum = added_counts(self._sum, records.peak[: len(records.row)].double().sum(0))
        self._count += len(records.row)

    def compute(self) -> pl.DataFrame:
        """The measure `confidence`."""
        value = (self._sum / max(self._count, 1))[None].cpu().numpy()
        return heads_table.rows("confidence", self.task, [""], value, np.array([self._count]), "words")


class PositionalProbe(Probe):
    """Per relative position (-5 to 5) the share of words that attend most to the word at it."""

    def __init__(self, task: str, layers: int, heads: int) -> None:
        self.task = task
        self._hit = torch.zeros(len(OFFSETS), layers, heads, dtype=torch.int64)
        self._count = 0

    def update(self, records: HeadRecords) -> None:
        """Add a batch to the counts."""
        words = records.attended(root=False, final=False)[: len(records.row)]
        offset = words - records.positions.to(words.device, non_blocking=True)[:, None, None]
        offset = offset.masked_fill(words < 0, OFFSETS[-1] + 1)
        places = torch.arange(OFFSETS[0], OFFSETS[-1] + 1, device=offset.device)[:, None, None, None]
        self._hit = added_counts(self._hit, (offset == places).sum(1))
        self._count += len(records.row)

    def compute(self) -> pl.DataFrame:
        """The measure `positional`; its labels are offsets with their signs."""
        count = np.full(len(OFFSETS), self._count)
        labels = [f"{offset:+d}" if offset else "0" for offset in OFFSETS]
        return heads_table.rows("positional", self.task, labels, hit_shares(self._hit, count), count, "words")


class SyntacticProbe(Probe):
    """Per relation and direction the share of arcs whose one end attends most to the other."""

    def __init__(
        self, task: str, items: Items, layers: int, heads: int, *, final: bool, causal: bool = False
    ) -> None:
        self.task, self.items, self.final, self.causal = task, items, final, causal
        self._hit = [torch.zeros(len(items.names), layers, heads, dtype=torch.int64) for _ in range(2)]
        self._count = torch.zeros(len(items.names), dtype=torch.int64)

    def update(self, records: HeadRecords) -> None:
        """Add a batch to the counts."""
        items = self.items.within(records)
        labels = len(self.items.names)
        for turn, hit in enumerate(hits(records.attended(root=True, final=self.final), items)):
            self._hit[turn] = added_counts(self._hit[turn], hits_by_label(hit, items.label, labels))
        self._count += torch.bincount(items.label, minlength=labels)

    def compute(self) -> pl.DataFrame:
        """The measure `syntactic` and its chance level `syntactic_offset`, per relation and direction.

        With `causal`, also `syntactic_possible`: the share of arcs that lead back, the only ones that such
        heads can meet.
        """
        count, choice = self._count.numpy(), columns(True, self.final, self.causal)
        frames = []
        by_offsets = offset_hits(self.items, self.causal)
        directions = zip(
            ("to dependent", "to head"), self._hit, by_offsets, possible(self.items), strict=True
        )
        for direction, hit, by_offset, reachable in directions:
            labels = [f"{name} {direction}" for name in self.items.names]
            share, _ = best_share(by_offset, self.items)
            frames += [
                heads_table.rows("syntactic", self.task, labels, hit_shares(hit, count), count, choice),
                heads_table.rows("syntactic_offset", self.task, labels, share, count, choice),
            ]
            if self.causal:
                frames.append(
                    heads_table.rows("syntactic_possible", self.task, labels, reachable, count, choice)
                )
        return pl.concat(frames)


class RareWordProbe(Probe):
    """The share of words that attend most to their sentence's rarest word, unless that word is frequent.

    `rarest`: per sentence of the corpus the place of that word, -1 if all words are frequent. `choice` names
    the source of the frequencies. `causal`: heads see no later words, so words before the rarest one do not
    count.
    """

    def __init__(
        self,
        task: str,
        rarest: Int[Tensor, " sentence"],
        layers: int,
        heads: int,
        *,
        choice: str = "self",
        causal: bool = False,
    ) -> None:
        self.task, self.rarest, self.causal = task, rarest, causal
        self.choice = choice + causal * ", none ahead"
        self._hit = torch.zeros(layers, heads, dtype=torch.int64)
        self._count = 0

    def update(self, records: HeadRecords) -> None:
        """Add a batch to the counts."""
        rarest = self.rarest[records.sentences].repeat_interleave(records.lengths)
        words = records.attended(root=False, final=False)[: len(records.row)]
        counts = rarest >= 0
        if self.causal:
            counts &= records.positions >= rarest
        # Nothing that a query attends to has this number.
        sought = rarest.masked_fill(~counts, NOTHING - 1).to(words.device, non_blocking=True)
        self._hit = added_counts(self._hit, (words == sought[:, None, None]).sum(0))
        self._count += int(counts.sum())

    def compute(self) -> pl.DataFrame:
        """The measure `rare_words`."""
        count = np.array([self._count])
        return heads_table.rows(
            "rare_words", self.task, [""], hit_shares(self._hit[None], count), count, self.choice
        )


def role_probes(settings: ProbeSettings) -> Iterator[Probe]:
    """The probes of roles that need no annotation, and the syntactic probe of tasks with arcs."""
    mask, layers, heads, corpus = settings.mask, settings.layers, settings.heads, settings.corpus
    causal = settings.causal
    yield ConfidenceProbe(mask, layers, heads)
    yield PositionalProbe(mask, layers, heads)
    yield RareWordProbe(mask, corpus.rarest(), layers, heads, choice=corpus.choice, causal=causal)
    for task in (task for task in settings.tasks if corpus.targets[task].root):
        items = corpus.items[task]
        yield SyntacticProbe(task, items, layers, heads, final=settings.final_special, causal=causal)


OFFSETS = tuple(range(-5, 6))
"""The relative positions of baseline heads, each of which always looks at the same one."""


def offset_hits(
    items: Items, causal: bool = False
) -> tuple[Bool[np.ndarray, "item offset"], Bool[np.ndarray, "item offset"]]:
    """The items that a head with each fixed offset hits from the anchor, and from a word of the item.

    The root is the word before the first. No item lies outside its sentence, so an offset that leads there
    hits nothing. `causal`: heads see no later words, so offsets ahead hit nothing either.
    """
    offset = torch.tensor(OFFSETS)
    start, end, anchor = (places[:, None] for places in (items.start, items.end, items.anchor))
    ahead, back = anchor + offset, anchor - offset
    seen = (offset <= 0) if causal else torch.ones(len(OFFSETS), dtype=torch.bool)
    return (
        ((ahead >= start) & (ahead < end) & seen).numpy(),
        ((back >= start) & (back < end) & seen).numpy(),
    )


def possible(
    items: Items,
) -> tuple[Float[np.ndarray, " label"], Float[np.ndarray, " label"]]:
    """Per label the share of items that a head which sees no later words can hit, in each direction.

    It can hit from the anchor if a word of the item is before or at the anchor, and from a word of the item
    if the anchor is before or at that word.
    """
    count = np.maximum(items.per_label(), 1)
    from_anchor, from_item = (
        np.bincount(items.label.numpy(), hit.numpy(), len(items.names)) / count
        for hit in (items.start <= items.anchor, items.anchor < items.end)
    )
    return from_anchor, from_item


def mean_lengths(
    items: Items,
) -> tuple[Float[np.ndarray, " label"], Int[np.ndarray, " label"]]:
    """Per label the mean number of words from an item to its anchor, and the number of these items.

    It is counted from the item's nearest word, and is 0 for an anchor within the item. Arcs from the root
    have no length.
    """
    within = (items.anchor >= 0).numpy()
    before, behind = items.start - items.anchor, items.anchor - (items.end - 1)
    length = torch.maximum(before, behind).clamp(min=0).numpy()[within]
    label = items.label.numpy()[within]
    count = np.bincount(label, minlength=len(items.names))
    total = np.bincount(label, length, minlength=len(items.names))
    return total / np.maximum(count, 1), count


def best_share(
    hit: Bool[np.ndarray, "item offset"], items: Items
) -> tuple[Float[np.ndarray, " label"], Int[np.ndarray, " label"]]:
    """Per label the share of items that its best offset hits, and that offset (the first on ties)."""
    per_label = np.zeros((len(items.names), len(OFFSETS)))
    np.add.at(per_label, items.label.numpy(), hit)
    share = per_label / np.maximum(items.per_label(), 1)[:, None]
    return share.max(1), np.array(OFFSETS)[share.argmax(1)]


def best_offset(
    items: Items, causal: bool = False
) -> tuple[Float[np.ndarray, " label"], Int[np.ndarray, " label"]]:
    """Per label the share that the best fixed offset hits in either direction, and that offset."""
    from_anchor, from_item = offset_hits(items, causal)
    return best_share(from_anchor | from_item, items)


def majority(items: Items, fitted: Items) -> Float[np.ndarray, " label"]:
    """Per label the score of always giving the most frequent label of `fitted`: 1 for that label, else 0."""
    scores = np.zeros(len(items.names))
    if len(fitted):
        scores[fitted.per_label().argmax()] = 1
    return scores


def shuffled(labels: Int[Tensor, " item"], seed: int) -> Int[Tensor, " item"]:
    """The labels in random order."""
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]


LENGTHS = range(4, 17)
"""The numbers of words of a sentence that fits on a narrow page."""


class ExampleProbe:
    """Collects examples while a corpus is observed under a mask.

    Args:
        corpus: the corpus.
        mask: the task of the mask; empty: all tasks.
        final: whether the final special token competes for the most attended word.
    """

    def __init__(self, corpus: ProbeCorpus, mask: str, final: bool) -> None:
        tasks = corpus.probed_by("attention", tuple(corpus.items))
        self._items = {task: corpus.items[task] for task in tasks}
        self._roots = {task: corpus.targets[task].root for task in tasks}
        self._mask, self._final = mask, final
        self._numbers = kept_sentence_numbers(corpus.sentences)
        self.sentences = tuple(
            ExampleSentence(corpus.sentences[number].words, self._arcs(number)) for number in self._numbers
        )
        self._rows: dict[int, list[tuple[object, ...]]] = {}

    def _arcs(self, sentence: int) -> tuple[ExampleArc, ...]:
        found = []
        for task, items in self._items.items():
            begin = int(items.counts[:sentence].sum())
            for item in range(begin, begin + int(items.counts[sentence])):
                label = items.names[int(items.label[item])]
                place = (int(column[item]) for column in (items.start, items.end, items.anchor))
                found.append(ExampleArc(task, label, *place))
        return tuple(found)

    def update(self, records: HeadRecords) -> None:
        """Take the sentences that are kept out of a batch; a batch may come twice."""
        places = {int(number): place for place, number in enumerate(records.sentences)}
        wanted = [number for number in self._numbers if number in places]
        if not wanted:
            return
        root = any(self._roots.values())
        attended = records.attended(root=root, final=self._final).cpu()
        peak = records.peak
        for other in (records.root,) * root + (records.final,) * self._final:
            peak = peak.maximum(other)
        share = (100 * peak).round().clamp(0, 100).int().cpu()
        hit = {task: self._hits(task, records) for task in self._items}
        for number in wanted:
            begin = int(records.starts[places[number]])
            words = slice(begin, begin + int(records.lengths[places[number]]))
            of_sentence = [hit[task][self._in_batch(task, number, records)] for task in self._items]
            self._rows[number] = _rows(attended[words], share[words], of_sentence)

    def _hits(self, task: str, records: HeadRecords) -> Tensor:
        met = hits(
            records.attended(root=self._roots[task], final=self._final), self._items[task].within(records)
        )
        return (met.from_anchor | met.from_item).cpu()

    def _in_batch(self, task: str, sentence: int, records: HeadRecords) -> slice:
        """The items of a sentence among those of the batch."""
        numbers = records.sentences.tolist()
        counts = self._items[task].counts
        begin = sum(int(counts[number]) for number in numbers[: numbers.index(sentence)])
        return slice(begin, begin + int(counts[sentence]))

    def table(self, sites: Sequence[Site]) -> pl.DataFrame:
        """The rows of `ExampleTables.table`."""
        rows = [
            (self._mask, place, "", *row)
            for place, number in enumerate(self._numbers)
            for row in self._rows.get(number, ())
        ]
        return heads_table.at_sites(pl.DataFrame(rows, EXAMPLES_SCHEMA, orient="row"), sites)


def _rows(
    attended: Int[Tensor, "word layer head"], share: Int[Tensor, "word layer head"], hit: Sequence[Tensor]
) -> list[tuple[object, ...]]:
    """A row per layer and head; `hit` has for each task a tensor of item, layer and head."""
    _, layers, heads = attended.shape
    return [
        (
            layer, head, attended[:, layer, head].tolist(), share[:, layer, head].tolist(),
            [bool(each) for part in hit for each in part[:, layer, head]],
        )
        for layer in range(layers)
        for head in range(heads)
    ]  # fmt: skip


def kept_sentence_numbers(sentences: Sequence[Sentence]) -> tuple[int, ...]:
    """The numbers of the sentences that are kept."""
    fitting = [number for number, sentence in enumerate(sentences) if len(sentence) in LENGTHS]
    count = min(SENTENCES, len(fitting))
    return tuple(fitting[number * len(fitting) // count] for number in range(count))


@dataclass(frozen=True, eq=False)
class AttentionMatrix:
    """What the positions of a text attend to: positions of the same text, or of another one."""

    title: str
    """The name of the head, and of the sentence if it has one."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    weights: Float[np.ndarray, "row column"]
    """From 0 to 1."""


def attention_table(matrices: Sequence[AttentionMatrix]) -> pl.DataFrame:
    """The weights of all matrices, a row each; sentences, rows and columns count from 0."""
    parts = []
    for sentence, matrix in enumerate(matrices):
        row, column = (index.ravel() for index in np.indices(matrix.weights.shape))
        parts.append(
            pl.DataFrame(
                {
                    "sentence": np.full(len(row), sentence),
                    "row": row,
                    "column": column,
                    "row_text": [matrix.rows[place] for place in row],
                    "column_text": [matrix.columns[place] for place in column],
                    "weight": matrix.weights.ravel(),
                }
            )
        )
    return pl.concat(parts)
