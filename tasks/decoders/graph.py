"""Graphs by biaffine scores of every pair of words (Dozat and Manning 2018); the root reaches every word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mtl.tasks.decoders.decoder import (
    MEAN_FIELD_STEPS,
    DiagonalBiaffine,
    Item,
    PairDecoder,
    PairScores,
    Steps,
    StructureScore,
    ThreeWords,
    WordMask,
    WordVectors,
    at_least_float32,
    in_steps,
    k_best,
    label_losses,
    of_other_words,
    one_after_another,
    scores_at,
    sums_by_sentence,
)
from mtl.tasks.recursions import compiled
from mtl.tasks.sentence import Arc, Graph
from mtl.tasks.task import Labels

_RARE = -3.0
"""Log odds of an arc between two words at the start: one head per word in a sentence of 20."""
_AT_ONCE = 2_048
"""Arcs whose labels are scored together in decoding, which bounds the memory if a model finds very many."""


class GraphBatch(NamedTuple):
    """`GraphTargets` of a batch one after the other (no padding), with their sentence's row."""

    rows: Int[Tensor, " arc"]
    dependents: Int[Tensor, " arc"]
    heads: Int[Tensor, " arc"]
    labels: Int[Tensor, " arc"]


class GraphTargets(NamedTuple):
    """The arcs: dependents from 0, heads from 1 (0 is the root), and their labels' indices."""

    dependents: Int[np.ndarray, " arc"]
    heads: Int[np.ndarray, " arc"]
    labels: Int[np.ndarray, " arc"]

    @staticmethod
    def collate(targets: Sequence[GraphTargets], width: int) -> GraphBatch:
        return GraphBatch(*one_after_another(targets))


def graph_targets(arcs: Sequence[Arc], labels: Labels) -> GraphTargets:
    """The targets of a graph with at most one arc between two words."""
    table = [(dependent - 1, head, labels.index(label)) for dependent, head, label in arcs]
    return GraphTargets(*np.array(table, dtype=np.int64).reshape(-1, 3).T)


class GraphDecoder(PairDecoder):
    """Whether there is an arc is decided for each pair alone; labels are scored at arcs only.

    A learned root vector stands before the words. The loss is `1 - interpolation` of the cross-entropy of all
    pairs and `interpolation` of that of the arcs' labels. An arc is decoded where its probability is above a
    half. With `connected`, words that are not reached from the root get the likeliest arcs from those that
    are, one by one. Then arcs from the root, and no others, have labels that begin with `root`, if there are
    such labels.

    With `pair_dim`, the scores of arcs are those after mean field inference over all pairs of arcs with a
    common word (Wang et al. 2019): siblings, which have one head, two heads of one word, and grandparents.
    """

    def __init__(
        self,
        hidden: int,
        labels: Labels,
        arc_dim: int,
        label_dim: int,
        dropout: float,
        interpolation: float,
        connected: bool,
        pair_dim: int | None = None,
    ) -> None:
        super().__init__(hidden, labels, arc_dim, label_dim, dropout, bias_right=True)
        self.interpolation = interpolation
        self.connected = connected
        nn.init.constant_(self.arc.get_parameter("bias"), _RARE)
        self.label = DiagonalBiaffine(label_dim, len(labels))
        of_root = [name.partition(">")[0].partition(":")[0] == "root" for name in labels.names]
        self.register_buffer("of_root", torch.tensor(of_root, dtype=torch.bool), persistent=False)
        self.pairs = None
        if pair_dim is not None:  # of a dependent, a head, and a dependent's dependent
            self.pairs = ThreeWords(hidden, pair_dim, dropout, ((0, 1, 0), (0, 1, 1), (0, 1, 2)))

    def forward(self, words: WordVectors, mask: WordMask) -> PairScores:
        candidates = functional.pad(mask, (1, 0), value=True)
        scores = self.pair_scores(words, mask[:, :, None] & candidates[:, None])
        if self.pairs is None:
            return scores
        siblings, heads, grandchildren = (
            of_other_words(pairs, mask) for pairs in self.pairs(self.with_root(words))
        )
        arcs = scores.arcs
        for _ in range(MEAN_FIELD_STEPS):
            found = arcs.sigmoid()
            between = found[:, :, 1:]
            of_pairs = found.mT[:, None] * siblings + between[:, :, None] * heads
            arcs = scores.arcs + (of_pairs + between.mT[:, :, None] * grandchildren).sum(3)
        return scores._replace(arcs=arcs)

    def loss(self, scores: PairScores, targets: GraphBatch, mask: WordMask) -> Float[Tensor, " batch"]:
        rows, dependents, heads, labels = targets
        # -log p is softplus(-s) = softplus(s) - s where there is an arc, softplus(s) elsewhere
        arcs = functional.softplus(scores.arcs).sum((1, 2))
        arcs = arcs.index_add(0, rows, -scores.arcs[rows, dependents, heads])
        of_labels = label_losses(self._labels(scores, rows, dependents, heads), labels)
        return ((1 - self.interpolation) * arcs).index_add(0, rows, self.interpolation * of_labels)

    def structure_score(
        self, scores: PairScores, targets: GraphBatch, mask: WordMask, label: int | None = None
    ) -> StructureScore:
        if label is not None:
            targets = GraphBatch(*(column[targets.labels == label] for column in targets))
        rows, dependents, heads, labels = targets
        of_labels = scores_at(self._labels(scores, rows, dependents, heads), labels)
        return sums_by_sentence(scores.arcs[rows, dependents, heads] + of_labels, rows, len(mask))

    @in_steps
    def decode(self, scores: PairScores, mask: WordMask) -> Steps[list[Graph]]:
        arcs, lengths = yield scores.arcs, mask.sum(1)
        chosen = arcs > 0
        if self.connected:
            chosen = with_all_reached(arcs, chosen, lengths)
        places = np.stack(chosen.nonzero())
        [index] = yield (places,)
        parts = [self._possible(scores, *part).argmax(1) for part in index.split(_AT_ONCE, 1)]
        [labels] = yield (torch.cat(parts),)
        found: list[list[Arc]] = [[] for _ in range(len(mask))]
        names = self.labels.names
        for row, dependent, head, label in zip(*places.tolist(), labels.tolist(), strict=True):
            found[row].append(Arc(dependent + 1, head, names[label]))
        return [Graph(tuple(of_sentence)) for of_sentence in found]

    def alternatives(
        self, scores: PairScores, mask: WordMask, decoded: Sequence[Graph], k: int
    ) -> list[tuple[Item, ...]]:
        """Heads of each word, by each pair alone, and the relations of each predicted arc."""
        arcs = [(row, arc.dependent - 1, arc.head) for row, graph in enumerate(decoded) for arc in graph.arcs]
        index = torch.tensor(arcs, dtype=torch.long, device=mask.device).view(-1, 3).T
        parts = [self._possible(scores, *part).softmax(1) for part in index.split(_AT_ONCE, 1)]
        relations = torch.cat(parts)
        of_relations = iter(k_best(relations, self.labels.names, k))
        of_heads = iter(k_best(scores.arcs.sigmoid()[mask], range(scores.arcs.shape[2]), k))
        return [
            (
                *[Item("head", word, word + 1, next(of_heads)) for word in range(length)],
                *[Item("relation", arc.dependent - 1, arc.dependent, next(of_relations), head=arc.head)
                  for arc in graph.arcs],
            )
            for graph, length in zip(decoded, mask.sum(1).tolist(), strict=True)
        ]  # fmt: skip

    def _possible(self, scores: PairScores, *places: Int[Tensor, " arc"]) -> Float[Tensor, "arc label"]:
        """As `_labels`, but -inf for labels that an arc cannot have."""
        labels = self._labels(scores, *places)
        if self.connected:
            of_root = self.get_buffer("of_root")
            other = (of_root != (places[2] == 0)[:, None]) & of_root.any() & ~of_root.all()
            labels = labels.masked_fill(other, -torch.inf)
        return labels

    def _labels(self, scores: PairScores, *places: Int[Tensor, " arc"]) -> Float[Tensor, "arc label"]:
        """The scores of the labels of arcs, given their rows, dependents and heads."""
        rows, dependents, heads = places
        return at_least_float32(self.label(scores.dependents[rows, dependents], scores.heads[rows, heads]))


def with_all_reached(
    scores: Float[np.ndarray, "batch word candidate"],
    chosen: Bool[np.ndarray, "batch word candidate"],
    lengths: Int[np.ndarray, " batch"],
) -> Bool[np.ndarray, "batch word candidate"]:
    """The chosen arcs and, as long as some words are not reached from the root, the best arc to one of them.

    `scores[b, d, h]` scores head `h` (0 is the root, else 1-based) for word `d` (from 0). An arc that is
    added leads from a word that is reached to one that is not; ties go to the first word. Time is quadratic
    in the words.
    """
    arcs = np.array(chosen, order="C")
    _solve_batch(np.ascontiguousarray(scores), arcs, lengths)
    return arcs


@compiled
@no_type_check
def _solve_batch(scores, arcs, lengths):
    for row in range(len(scores)):
        _solve(scores[row], arcs[row], lengths[row])


@compiled
@no_type_check
def _solve(scores, arcs, length):
    reached = np.zeros(length + 1, dtype=np.bool_)
    best = np.full(length, -np.inf)
    best_head = np.zeros(length, dtype=np.int64)
    stack = np.zeros(length + 1, dtype=np.int64)
    reached[0] = True
    top = 1
    for _ in range(length + 1):
        if top == 0:  # all that is reached has been passed on: add an arc
            word = -1
            for d in range(length):
                if not reached[d + 1] and (word < 0 or best[d] > best[word]):
                    word = d
            arcs[word, best_head[word]] = True
            reached[word + 1] = True
            stack[0] = word + 1
            top = 1
        top -= 1
        head = stack[top]
        for d in range(length):
            if reached[d + 1]:
                continue
            if arcs[d, head]:
                reached[d + 1] = True
                stack[top] = d + 1
                top += 1
            elif scores[d, head] > best[d]:
                best[d] = scores[d, head]
                best_head[d] = head
