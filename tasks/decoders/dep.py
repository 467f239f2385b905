"""Dependency parsing: biaffine heads and relations, decoded as a single-root spanning tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from mtl.tasks.decoders.classifier import allowed_labels
from mtl.tasks.decoders.decoder import (
    Biaffine,
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
    padded,
    scores_at,
)
from mtl.tasks.recursions import compiled
from mtl.tasks.rules import Match
from mtl.tasks.sentence import Arcs, Sentence
from mtl.tasks.task import UNKNOWN, Labels


class ArcBatch(NamedTuple):
    """`ArcTargets` of a batch; both are `UNKNOWN` at padding."""

    heads: Int[Tensor, "batch word"]
    relations: Int[Tensor, "batch word"]


class ArcTargets(NamedTuple):
    """Per word its head (0 is the root, else 1-based) and its relation's index, `UNKNOWN` without a head."""

    heads: Int[np.ndarray, " word"]
    relations: Int[np.ndarray, " word"]

    @staticmethod
    def collate(targets: Sequence[ArcTargets], width: int) -> ArcBatch:
        return ArcBatch(*(padded(column, width) for column in zip(*targets, strict=True)))


def arc_targets(sentence: Sentence, layer: str, labels: Labels, *, projective: bool = False) -> ArcTargets:
    """The targets of an annotated sentence; raises `ValueError` unless the heads are possible.

    With `projective`, as few heads as possible are left out so that a projective tree has all others.
    """
    arcs = sentence.layer(layer)
    if arcs is None or not len(arcs.heads) == len(arcs.relations) == len(sentence):
        raise ValueError(f"sentence '{sentence.id}': needs one head and one relation per word")
    given = [head for head in arcs.heads if head is not None]
    if given and not 0 <= min(given) <= max(given) <= len(sentence):
        raise ValueError(f"sentence '{sentence.id}': heads must lie between 0 and {len(sentence)}")
    heads = np.array([UNKNOWN if head is None else head for head in arcs.heads], dtype=np.int64)
    if (heads == np.arange(1, len(heads) + 1)).any():
        raise ValueError(f"sentence '{sentence.id}': a word cannot be its own head")
    if projective:
        agreement = heads[:, None] == np.arange(len(heads) + 1)
        fitting = projective_trees(agreement[None].astype(float), np.array([len(heads)]))[0]
        heads = np.where(heads == fitting, heads, UNKNOWN)
    relations = np.array([labels.index(name) for name in arcs.relations], dtype=np.int64)
    return ArcTargets(heads, np.where(heads == UNKNOWN, UNKNOWN, relations))


class SiblingScores(NamedTuple):
    """`PairScores` and the scores of a word, a head and another word with this head."""

    arcs: Float[Tensor, "batch word candidate"]
    dependents: Float[Tensor, "batch word label_dim"]
    heads: Float[Tensor, "batch candidate label_dim"]
    siblings: Float[Tensor, "batch candidate candidate candidate"]


class RuledScores(NamedTuple):
    """`PairScores` under rules: arcs that they exclude have -inf; `allowed` are relations."""

    arcs: Float[Tensor, "batch word candidate"]
    dependents: Float[Tensor, "batch word label_dim"]
    heads: Float[Tensor, "batch candidate label_dim"]
    allowed: Bool[Tensor, "batch word label"]
    siblings: Float[Tensor, "batch candidate candidate candidate"] | None


TreeScores = PairScores | SiblingScores | RuledScores


class DepDecoder(PairDecoder):
    """A head for every word, so that they make a tree, and its relation to that head.

    `projective` decodes trees without crossing arcs. With `tie_root`, the root's dependent gets a relation
    named `root` (up to a colon) and no other word does, as far as the labels allow it. With `sibling_dim`,
    the scores have those of a word, a head and another word with this head, which subclasses read.
    """

    ruled = "arcs"
    of_root: Tensor | None

    def __init__(
        self,
        hidden: int,
        labels: Labels,
        arc_dim: int,
        relation_dim: int,
        dropout: float,
        *,
        projective: bool = False,
        tie_root: bool = False,
        sibling_dim: int | None = None,
    ) -> None:
        super().__init__(hidden, labels, arc_dim, relation_dim, dropout, bias_right=False)
        self.projective = projective
        of_root = [name.partition(":")[0].lower() == "root" for name in labels.names]
        told_apart = tie_root and any(of_root) and not all(of_root)
        self.register_buffer("of_root", torch.tensor(of_root) if told_apart else None, persistent=False)
        self.relation = Biaffine(relation_dim, len(labels))
        self.siblings = None
        if sibling_dim is not None:
            self.siblings = ThreeWords(hidden, sibling_dim, dropout, ((0, 1, 2),))

    def forward(self, words: WordVectors, mask: WordMask) -> TreeScores:
        # Rows of padding keep finite scores; without any, their gradients would be NaN.
        scores = self.pair_scores(words, functional.pad(mask, (1, 0), value=True)[:, None])
        if self.siblings is None:
            return scores
        return SiblingScores(*scores, self.siblings(self.with_root(words))[0])

    def loss(self, scores: TreeScores, targets: ArcBatch, mask: WordMask) -> Float[Tensor, " batch"]:
        arcs = label_losses(scores.arcs, targets.heads)
        return (arcs + self._relation_losses(scores, targets)).sum(1)

    def structure_score(
        self, scores: TreeScores, targets: ArcBatch, mask: WordMask, label: int | None = None
    ) -> StructureScore:
        chosen = targets.heads != UNKNOWN if label is None else targets.relations == label
        arcs = self._of_arcs(scores, targets.heads)
        relations = scores_at(self._relations(scores, targets.heads.clamp_min(0)), targets.relations)
        return StructureScore((arcs + relations).masked_fill(~chosen, 0.0).sum(1), chosen.sum(1))

    @in_steps
    def decode(self, scores: TreeScores, mask: WordMask) -> Steps[list[Arcs]]:
        arcs, lengths = yield self._for_trees(scores, mask), mask.sum(1)
        heads = (projective_trees if self.projective else maximum_trees)(arcs, lengths)
        places = (np.arange(mask.shape[1]) < lengths[:, None]).nonzero()
        [[rows, words, of_words]] = yield (np.stack([*places, heads[places]]),)
        of_arcs = self._relations_of(scores, rows, words, of_words)
        allowed = scores.allowed[rows, words] if isinstance(scores, RuledScores) else None
        [relations] = yield (self._possible(of_arcs, of_words, allowed).argmax(1),)
        found = [self.labels.names[index] for index in relations.tolist()]
        last = lengths.cumsum().tolist()
        return [
            Arcs(tuple(heads_of[:length].tolist()), tuple(found[end - length : end]))
            for heads_of, length, end in zip(heads, lengths.tolist(), last, strict=True)
        ]

    def constrained(
        self, scores: TreeScores, mask: WordMask, matches: Sequence[Sequence[Match]]
    ) -> RuledScores:
        """Scores without the arcs and relations that rules exclude.

        A word that may only have relations of the root gets no other head, and one that may have none of them
        not the root, if the root is tied to them. Rules that leave a word no head are not kept.
        """
        arcs = scores.arcs
        allowed = allowed_labels(arcs.new_zeros(*mask.shape, len(self.labels)), matches, self.labels)
        possible = torch.ones_like(arcs, dtype=torch.bool)
        for row, of_sentence in zip(possible, matches, strict=True):
            for start, _, rule, heads in of_sentence:
                if rule.head is not None and rule.force:
                    only = torch.zeros_like(row[start])
                    only[list(heads)] = True
                    row[start] &= only
                elif rule.head is not None:
                    row[start, list(heads)] = False
        if self.of_root is not None:
            possible[..., 0] &= (allowed & self.of_root).any(2)
            possible[..., 1:] &= (allowed & ~self.of_root).any(2)[..., None]
        ruled = arcs.masked_fill(~possible, -torch.inf)
        headless = ruled.isneginf().all(2, keepdim=True)
        ruled = torch.where(headless, arcs, ruled)
        return RuledScores(ruled, scores.dependents, scores.heads, allowed, siblings_of(scores))

    def alternatives(
        self, scores: TreeScores, mask: WordMask, decoded: Sequence[Arcs], k: int
    ) -> list[tuple[Item, ...]]:
        """Heads by `head_probabilities`, and relations given the predicted head, by a softmax.

        The predicted head need not be the most probable one.
        """
        heads = torch.zeros(mask.shape, dtype=torch.long)
        for row, arcs in zip(heads, decoded, strict=True):
            row[: len(arcs.heads)] = torch.tensor(arcs.heads)
        chosen = heads.to(mask.device)
        allowed = scores.allowed if isinstance(scores, RuledScores) else None
        relations = self._possible(self._relations(scores, chosen), chosen, allowed).softmax(2)[mask]
        of_heads = iter(k_best(self.head_probabilities(scores, mask)[mask], range(scores.arcs.shape[2]), k))
        of_relations = iter(k_best(relations, self.labels.names, k))
        return [
            tuple(
                [
                    item
                    for word in range(len(arcs.heads))
                    for item in (
                        Item("head", word, word + 1, next(of_heads)),
                        Item("relation", word, word + 1, next(of_relations)),
                    )
                ]
            )
            for arcs in decoded
        ]

    def head_probabilities(self, scores: TreeScores, mask: WordMask) -> Float[Tensor, "batch word candidate"]:
        """The distribution of each word's head: here that of the word alone."""
        return scores.arcs.softmax(2)

    def _for_trees(self, scores: TreeScores, mask: WordMask) -> Float[Tensor, "batch word candidate"]:
        """What the decoded tree has the greatest sum of."""
        return scores.arcs

    def _of_arcs(self, scores: TreeScores, heads: Int[Tensor, "batch word"]) -> Float[Tensor, "batch word"]:
        """The score of each word's arc from its head; 0 where the head is `UNKNOWN`."""
        return scores_at(scores.arcs, heads)

    def _relation_losses(self, scores: TreeScores, targets: ArcBatch) -> Float[Tensor, "batch word"]:
        return label_losses(self._relations(scores, targets.heads.clamp_min(0)), targets.relations)

    def _possible(
        self,
        relations: Float[Tensor, "*batch word label"],
        heads: Int[Tensor, "*batch word"],
        allowed: Bool[Tensor, "*batch word label"] | None = None,
    ) -> Float[Tensor, "*batch word label"]:
        """Scores of the relations that a word may have to its head; rules that leave none are not kept."""
        if self.of_root is not None:
            from_root = (heads == 0)[..., None]
            relations = relations.masked_fill(from_root != self.of_root, -torch.inf)
        if allowed is None:
            return relations
        ruled = relations.masked_fill(~allowed, -torch.inf)
        return torch.where(ruled.isneginf().all(-1, keepdim=True), relations, ruled)

    def _relations(
        self, scores: TreeScores, heads: Int[Tensor, "batch word"]
    ) -> Float[Tensor, "batch word label"]:
        width = scores.heads.shape[2]
        chosen = scores.heads.gather(1, heads[:, :, None].expand(-1, -1, width))
        relations = self.relation.pairs(scores.dependents.flatten(0, 1), chosen.flatten(0, 1))
        return at_least_float32(relations).view(*heads.shape, relations.shape[1])

    def _relations_of(
        self,
        scores: TreeScores,
        rows: Int[Tensor, " word"],
        words: Int[Tensor, " word"],
        heads: Int[Tensor, " word"],
    ) -> Float[Tensor, "word label"]:
        """The scores of relations at some words only."""
        return at_least_float32(
            self.relation.pairs(scores.dependents[rows, words], scores.heads[rows, heads])
        )


def siblings_of(scores: TreeScores) -> Float[Tensor, "batch candidate candidate candidate"] | None:
    """The scores of siblings, of a decoder that has such scores."""
    return None if isinstance(scores, PairScores) else scores.siblings


def maximum_trees(
    scores: Float[np.ndarray, "batch word candidate"], lengths: Int[np.ndarray, " batch"]
) -> Int[np.ndarray, "batch word"]:
    """The best tree of each sentence in which exactly one word hangs from the root; padding gets 0.

    `scores[b, d, h]` scores head `h` (0 is the root, else 1-based) for word `d` (from 0). A score that is
    not finite forbids its arc: it is taken only if every tree has such an arc. Heads are returned with the
    same numbers. Time is quadratic in the words.
    """
    heads = np.zeros(scores.shape[:2], dtype=np.int64)
    _solve_batch(np.ascontiguousarray(scores), lengths, heads)
    return heads


@compiled
@no_type_check
def _solve_batch(scores, lengths, heads):
    for row in range(len(scores)):
        if lengths[row] > 0:
            _solve(arc_weights(scores[row], lengths[row]), heads[row])


@compiled
@no_type_check
def arc_weights(scores, length):
    """The weights of arcs, float64 [length + 1, length + 1], whose best tree has one arc from the root.

    `scores` [word, candidate] are those of one sentence of `length` words, candidate 0 the root; row 0 of the
    result has no meaning. Arcs whose score is not finite get a weight so low that the best tree has one
    only where every tree must.
    """
    # All trees have `length` arcs, so the scores of two trees differ by at most `length` times the range of
    # arc scores. A larger penalty on arcs from the root therefore makes every tree with one such arc beat
    # every tree with several. In float64 the penalty costs the float32 scores no digits.
    low, high = np.inf, -np.inf
    for d in range(length):
        for h in range(length + 1):
            if h != d + 1 and np.isfinite(scores[d, h]):
                low = min(low, scores[d, h])
                high = max(high, scores[d, h])
    if low > high:
        low, high = 0.0, 0.0
    forbidden = low - (high - low + 1.0) * (length + 1)
    penalty = (high - forbidden + 1.0) * (length + 1)
    weights = np.empty((length + 1, length + 1))
    for d in range(length):
        for h in range(length + 1):
            weights[d + 1, h] = scores[d, h] if np.isfinite(scores[d, h]) else forbidden
        weights[d + 1, 0] -= penalty
    return weights


@compiled
@no_type_check
def _solve(weights, heads):
    """Follow best arcs from word to head; contract each cycle into one of its slots; unfold at the end.

    A slot is a row of `weights` (0 is the root). It represents a node: a word (1..n) or a contracted
    cycle (n + 1 ..), which is the parent of the nodes in it. Every arc between slots remembers the words
    that it joins. Contracting k of n slots takes O(k n) and leaves k - 1 fewer, so the whole takes O(n^2).
    """
    slots = len(weights)
    arc_word = np.empty((slots, slots), dtype=np.int32)
    arc_head = np.empty((slots, slots), dtype=np.int32)
    for d in range(slots):
        for h in range(slots):
            arc_word[d, h] = d
            arc_head[d, h] = h
    node = np.arange(slots)
    untouched, on_path, done, gone = 0, 1, 2, 3
    state = np.zeros(slots, dtype=np.int8)
    state[0] = done
    parent = np.zeros(2 * slots, dtype=np.int32)
    chosen_word = np.zeros(2 * slots, dtype=np.int32)
    chosen_head = np.zeros(2 * slots, dtype=np.int32)
    chosen_weight = np.zeros(slots)
    path = np.empty(slots, dtype=np.int32)
    nodes = slots

    for start in range(1, slots):
        if state[start] != untouched:
            continue
        path[0] = start
        state[start] = on_path
        top = 0
        while True:
            slot = path[top]
            head = 0
            for other in range(1, slots):
                if other != slot and state[other] != gone and weights[slot, other] > weights[slot, head]:
                    head = other
            chosen_word[node[slot]] = arc_word[slot, head]
            chosen_head[node[slot]] = arc_head[slot, head]
            chosen_weight[slot] = weights[slot, head]
            if state[head] == done:
                for index in range(top + 1):
                    state[path[index]] = done
                break
            if state[head] == untouched:
                top += 1
                path[top] = head
                state[head] = on_path
                continue
            # `head` is on the path: the path from there on is a cycle, which is contracted into slot `head`
            first = top
            while path[first] != head:
                first -= 1
            for other in range(slots):
                if state[other] == gone:
                    continue
                inside = False
                for index in range(first, top + 1):
                    inside = inside or path[index] == other
                if inside:
                    continue
                best_in, best_out = head, head
                best_in_weight = weights[head, other] - chosen_weight[head]
                for index in range(first + 1, top + 1):
                    member = path[index]
                    if weights[member, other] - chosen_weight[member] > best_in_weight:
                        best_in = member
                        best_in_weight = weights[member, other] - chosen_weight[member]
                    if weights[other, member] > weights[other, best_out]:
                        best_out = member
                weights[head, other] = best_in_weight
                arc_word[head, other] = arc_word[best_in, other]
                arc_head[head, other] = arc_head[best_in, other]
                if other > 0:
                    weights[other, head] = weights[other, best_out]
                    arc_word[other, head] = arc_word[other, best_out]
                    arc_head[other, head] = arc_head[other, best_out]
            for index in range(first, top + 1):
                parent[node[path[index]]] = nodes
                state[path[index]] = gone
            state[head] = on_path
            node[head] = nodes
            nodes += 1
            top = first

    # The arc into a contracted cycle replaces the arc of the member that it enters, at every level below.
    replaced = np.zeros(nodes, dtype=np.bool_)
    for outer in range(nodes - 1, 0, -1):
        if replaced[outer]:
            continue
        heads[chosen_word[outer] - 1] = chosen_head[outer]
        inner = chosen_word[outer]
        while inner != outer:
            replaced[inner] = True
            inner = parent[inner]


def projective_trees(
    scores: Float[np.ndarray, "batch word candidate"], lengths: Int[np.ndarray, " batch"]
) -> Int[np.ndarray, "batch word"]:
    """The best projective tree of each sentence in which exactly one word hangs from the root.

    Arguments and result are those of `maximum_trees`. Time is cubic in the words.
    """
    heads = np.zeros(scores.shape[:2], dtype=np.int64)
    _solve_projective_batch(np.ascontiguousarray(scores), lengths, heads)
    return heads


@compiled
@no_type_check
def _solve_projective_batch(scores, lengths, heads):
    size = scores.shape[2]
    # The best sums of half trees over the words s to t: `right` is headed by s, `left` by t; `open_` ones
    # have the arc between s and t, but not the outer dependents of its dependent. Each sum lies where the
    # search for a split reads a row: `X_from[s, t]`, `X_to[t, s]`.
    right_from, right_to = np.empty((size, size)), np.empty((size, size))
    left_from, left_to = np.empty((size, size)), np.empty((size, size))
    open_right_from, open_left_to = np.empty((size, size)), np.empty((size, size))
    split_open = np.empty((size, size), dtype=np.int32)
    split_right = np.empty((size, size), dtype=np.int32)
    split_left = np.empty((size, size), dtype=np.int32)
    stack = np.empty((2 * size, 2), dtype=np.int32)
    for row in range(len(scores)):
        n = lengths[row]
        if n == 0:
            continue
        weights = arc_weights(scores[row], n)
        for t in range(1, n + 1):
            right_from[t, t] = right_to[t, t] = left_from[t, t] = left_to[t, t] = 0.0
            for s in range(t - 1, 0, -1):
                best, split = right_from[s, s] + left_to[t, s + 1], s
                for middle in range(s + 1, t):
                    total = right_from[s, middle] + left_to[t, middle + 1]
                    if total > best:
                        best, split = total, middle
                split_open[s, t] = split
                open_right_from[s, t] = best + weights[t, s]
                open_left_to[t, s] = best + weights[s, t]

                best, split = open_right_from[s, t], t
                for middle in range(s + 1, t):
                    total = open_right_from[s, middle] + right_to[t, middle]
                    if total > best:
                        best, split = total, middle
                split_right[s, t] = split
                right_from[s, t] = right_to[t, s] = best

                best, split = open_left_to[t, s], s
                for middle in range(s + 1, t):
                    total = left_from[s, middle] + open_left_to[t, middle]
                    if total > best:
                        best, split = total, middle
                split_left[s, t] = split
                left_from[s, t] = left_to[t, s] = best

        root = 1
        for word in range(2, n + 1):
            if (
                weights[word, 0] + left_from[1, word] + right_from[word, n]
                > weights[root, 0] + left_from[1, root] + right_from[root, n]
            ):
                root = word
        heads[row, root - 1] = 0
        _unfold(root, n, split_open, split_right, split_left, stack, heads[row])


@compiled
@no_type_check
def _unfold(root, n, split_open, split_right, split_left, stack, heads):
    # A half tree is its head and its other end.
    stack[0, 0], stack[0, 1] = root, 1
    stack[1, 0], stack[1, 1] = root, n
    top = 2
    while top > 0:
        top -= 1
        head, end = stack[top]
        if head == end:
            continue
        if end < head:
            dependent = split_left[end, head]
            between = split_open[dependent, head]
            first, last = dependent, head
        else:
            dependent = split_right[head, end]
            between = split_open[head, dependent]
            first, last = head, dependent
        heads[dependent - 1] = head
        stack[top, 0], stack[top, 1] = dependent, end
        stack[top + 1, 0], stack[top + 1, 1] = first, between
        stack[top + 2, 0], stack[top + 2, 1] = last, between + 1
        top += 3
