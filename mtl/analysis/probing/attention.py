"""What one head attends to on sentences, and which arcs it hits and misses by the rules of the probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mtl.analysis.probing.probe import ObservedCorpus
from mtl.errors import InputError, as_input_error
from mtl.models.head_scales import Mask
from mtl.models.tapped import TappedModel, WordReader
from mtl.probes.figures.attention import GoldArc, ShownAttention
from mtl.probes.measures import attention
from mtl.probes.measures.attention import hits
from mtl.probes.measures.corpus import Items, ProbeCorpus
from mtl.probes.measures.probe import FINAL, NOTHING, ROOT, HeadRecords
from mtl.probes.sites import Site, head_name, kind_in, read_head
from mtl.probes.tables.label_scores import arcs_count
from mtl.tasks.sentence import Sentence


class Head(NamedTuple):
    """A head of a model: the number of its site, its number in the site, and its name."""

    site: int
    number: int
    name: str


def head_of(model: TappedModel, name: str, others: Sequence[str] = ()) -> Head:
    """The head of this name (`L2H0`); `others` are kinds of attention that the model has besides its sites.

    Raises `InputError` if there is none, for a whole layer, and for a head that was cut out.
    """
    tap = model.tap
    kind, kinds = kind_in(name), [*dict.fromkeys(site.attention for site in tap.sites), *others]
    if kind is not None and kind not in kinds:
        raise InputError(f"{name}: the model has no attention of kind {kind}: it has {', '.join(kinds)}")
    if kind in others:
        raise InputError(f"{name}: this part of the model has no {kind} attention: give the whole model")
    with as_input_error(name):
        site, number = read_head(name, tap.sites, tap.heads)
    if number is None:
        raise InputError(f"{name} is a whole layer: choose one of its heads, such as {name}H0")
    if number not in tap.remaining[site]:
        raise InputError(f"{name} was cut out of this model, and attends to nothing")
    every = (*tap.sites, *(Site(other, 0) for other in others))
    return Head(site, number, head_name(tap.sites[site], number, every))


def attention_of(
    encoder: WordReader, sentences: Sequence[Sentence], head: Head, mask: Mask | None = None
) -> list[ShownAttention]:
    """The attention of a head on sentences, from word to word.

    Raises `InputError` for a sentence without words and, in encoder-decoder models, for one whose words
    share a piece.
    """
    if encoder.without and not all(encoder.covers(sentences)):
        raise InputError("a subword of this model covers several words of the sentence: use another one")
    corpus = ObservedCorpus(encoder, sentences, _scale(encoder, mask))
    special = _special(encoder)
    found: dict[int, ShownAttention] = {}
    for batch, numbers in enumerate(corpus.batches):
        observation, positions = corpus.observed(batch)
        one = observation.attentions[head.site][:, head.number : head.number + 1]
        queries = positions.attention(one)[:, 0].cpu().numpy()
        rows, base = positions.row.cpu().numpy(), positions.base.cpu().numpy()
        first_of_row, begin = queries[len(rows) :], 0
        for number in numbers:
            words = len(sentences[number])
            weights = np.zeros((words + 1, words + 2))
            for word, row in enumerate(rows[begin : begin + words], 1):
                known = min(positions.width, words - base[row])
                own = slice(1 + base[row], 1 + base[row] + known)
                attended = queries[begin + word - 1]
                weights[word, [0, -1]] = attended[[0, -1]]
                weights[word, own] = attended[1 : 1 + known]
                # The first special token attends from the window that owns its word.
                if own.start <= word < own.stop:
                    weights[0, word] = first_of_row[row, word - base[row]]
            weights[0, [0, -1]] = first_of_row[rows[begin]][[0, -1]]
            if special[0] is None:
                weights[0] = 0
            begin += words
            found[number] = ShownAttention(sentences[number], head.name, special, weights)
    return [found[number] for number in range(len(sentences))]


def _special(encoder: WordReader) -> tuple[str | None, str | None]:
    """The first and the final special token as the tokenizer writes them; `None` if there is none."""
    tokenizer = encoder.tokenizer
    names = tokenizer.tokenizer.convert_ids_to_tokens
    return (
        names(int(tokenizer.prefix[0])) if len(tokenizer.prefix) else None,
        names(int(tokenizer.suffix[-1])) if len(tokenizer.suffix) else None,
    )


def _scale(encoder: WordReader, mask: Mask | None) -> Float[Tensor, "site head"] | None:
    if mask is None or mask.head_scale is None:
        return None
    return mask.head_scale.to(next(encoder.parameters()).device)


@dataclass(frozen=True)
class Relation:
    """How well a head connects the two ends of a task's arcs with one label."""

    task: str
    label: str
    value: float
    """The share of the arcs that it hits in either direction (the measure `attention`)."""
    chance: float
    """The best share, on the same arcs, of a head that always looks at one offset."""
    count: int
    to_head: float
    """The share of the arcs whose dependent attends most to its head (of arguments: to their predicate)."""
    to_dependent: float
    """The share of the arcs whose head attends most to the dependent."""

    @property
    def counted(self) -> bool:
        """Whether the label counts in statements about a head."""
        return arcs_count(self.label, self.count)

    @property
    def rank(self) -> tuple[bool, float]:
        """How well a head is known for it: labels that count come first, then larger values above chance."""
        return self.counted, self.value - self.chance


@dataclass(frozen=True)
class SeenItems:
    """Which items of a task a head connects with their anchors, and how surely."""

    items: Items
    from_anchor: Bool[np.ndarray, " item"]
    from_item: Bool[np.ndarray, " item"]
    anchor_weight: Float[np.ndarray, " item"]
    """The attention of the anchor to the word that it attends to most."""
    item_weight: Float[np.ndarray, " item"]
    """The same for the item's words: the largest of their values."""

    @property
    def hit(self) -> Bool[np.ndarray, " item"]:
        """Whether an item is hit in either direction."""
        return self.from_anchor | self.from_item


def no_arcs(corpus: ProbeCorpus, task: str | None, label: str | None) -> InputError:
    """The error that a corpus has no arc of a task, or none with a label."""
    named = " ".join(filter(None, (task, label)))
    known = ", ".join(f"{task} ({' '.join(items.names)})" for task, items in corpus.items.items())
    return InputError(f"no arc of the corpus is {named}: it has {known}")


class HeadOnCorpus:
    """One head on an annotated corpus: relations, and the sentences behind their numbers.

    Args:
        encoder: the model.
        corpus: the sentences and the items of the tasks that are probed by attention.
        head: the head.
        mask: a mask over the heads, with the tasks that are probed under it; `None`: all heads, all tasks.
        final: whether the final special token competes for the most attended word.
        advance: receives the number of sentences of each finished batch.
    """

    def __init__(
        self,
        encoder: WordReader,
        corpus: ProbeCorpus,
        head: Head,
        mask: Mask | None = None,
        *,
        final: bool = False,
        advance: Callable[[int], None] = lambda sentences: None,
    ) -> None:
        self.encoder, self.corpus, self.head, self.mask = encoder, corpus, head, mask
        probed = tuple(corpus.items) if mask is None else mask.tasks
        tasks = corpus.probed_by("attention", probed)
        parts: dict[str, list[tuple[Tensor, ...]]] = {task: [] for task in tasks}
        observed = ObservedCorpus(encoder, corpus.sentences, _scale(encoder, mask))
        for batch in range(len(observed)):
            records = _of_head(observed[batch], head)
            for task in tasks:
                root = corpus.targets[task].root
                parts[task].append(_seen(records, corpus.items[task], root=root, final=final))
            advance(len(records.sentences))
        self.seen: dict[str, SeenItems] = {}
        for task in tasks:
            number, *columns = (torch.cat(column) for column in zip(*parts[task], strict=True))
            order = number.argsort()
            self.seen[task] = SeenItems(corpus.items[task], *(column[order].numpy() for column in columns))

    def relations(self) -> list[Relation]:
        """All relations by `Relation.rank`, so that those that the head is known for come first."""
        found = []
        for task, seen in self.seen.items():
            items = seen.items
            counts = items.per_label()
            shares = [
                np.bincount(items.label.numpy(), hit, len(counts)) / np.maximum(counts, 1)
                for hit in (seen.hit, seen.from_item, seen.from_anchor)
            ]
            offsets, _ = attention.best_offset(items, self.encoder.causal)
            for number, label in enumerate(items.names):
                value, to_head, to_dependent = (float(share[number]) for share in shares)
                level, count = float(offsets[number]), int(counts[number])
                found.append(Relation(task, label, value, level, count, to_head, to_dependent))
        return sorted(found, key=lambda each: each.rank, reverse=True)

    def relation(self, task: str | None = None, label: str | None = None) -> Relation:
        """The relation that the head is known for; only of this task and with this label, if they are given.

        Raises `InputError` if there is none.
        """
        for relation in self.relations():
            if task in (None, relation.task) and label in (None, relation.label):
                return relation
        raise no_arcs(self.corpus, task, label)

    def shown(self, sentences: Sequence[int], relation: Relation) -> list[ShownAttention]:
        """The attention on these sentences of the corpus, with the relation's arcs, hit and missed."""
        chosen = [self.corpus.sentences[number] for number in sentences]
        attention = attention_of(self.encoder, chosen, self.head, self.mask)
        return [
            replace(each, gold=self._gold(number, relation), root=self.corpus.targets[relation.task].root)
            for number, each in zip(sentences, attention, strict=True)
        ]

    def _gold(self, sentence: int, relation: Relation) -> tuple[GoldArc, ...]:
        seen = self.seen[relation.task]
        items = seen.items
        begin = int(items.counts[:sentence].sum())
        return tuple(
            GoldArc(
                int(items.start[item]), int(items.end[item]), int(items.anchor[item]), relation.label,
                bool(seen.hit[item]),
            )
            for item in range(begin, begin + int(items.counts[sentence]))
            if items.names[int(items.label[item])] == relation.label
        )  # fmt: skip

    def examples(self, relation: Relation, which: Literal["hits", "misses"], count: int) -> list[int]:
        """The numbers of at most `count` sentences with the arcs that the head hits or misses most surely.

        How sure it is: its attention to the most attended word, in the direction in which it hits more arcs.
        """
        seen = self.seen[relation.task]
        items = seen.items
        turned = relation.to_head < relation.to_dependent
        weight = seen.anchor_weight if turned else seen.item_weight
        hit = seen.from_anchor if turned else seen.from_item
        of_label = items.label.numpy() == items.names.index(relation.label)
        chosen = np.flatnonzero(of_label & (hit if which == "hits" else ~seen.hit))
        sentence = np.repeat(np.arange(len(items.counts)), items.counts.numpy())
        ranked = sentence[chosen[np.argsort(-weight[chosen], kind="stable")]].tolist()
        return list(dict.fromkeys(ranked))[:count]


def _of_head(records: HeadRecords, head: Head) -> HeadRecords:
    """The records of one head, on the CPU; its outputs are left out."""
    one = np.index_exp[:, head.site : head.site + 1, head.number : head.number + 1]
    return HeadRecords(
        records.sentences, records.lengths, records.row, records.word[one].cpu(),
        records.peak[one].cpu(), records.root[one].cpu(), records.final[one].cpu(),
        records.outputs[one][..., :0].cpu(), records.projected[:, :1, :0, :0].cpu(),
    )  # fmt: skip


def _seen(records: HeadRecords, items: Items, *, root: bool, final: bool) -> tuple[Tensor, ...]:
    """The numbers of a batch's items, and the columns of `SeenItems` for them."""
    placed = items.within(records)
    attended = records.attended(root=root, final=final)
    hit = hits(attended, placed)
    weight = torch.where(attended == ROOT, records.root, records.peak)
    weight = torch.where(attended == FINAL, records.final, weight)
    weight = weight.masked_fill(attended == NOTHING, 0)[:, 0, 0]
    of_item = weight.new_zeros(len(placed.length)).scatter_reduce(0, placed.item, weight[placed.word], "amax")
    return (
        placed.number, hit.from_anchor[:, 0, 0], hit.from_item[:, 0, 0], weight[placed.at_anchor], of_item,
    )  # fmt: skip
