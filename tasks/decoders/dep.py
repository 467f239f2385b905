"""Dependency parsing: biaffine heads and relations, decoded as a single-root spanning tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from mtl.tasks.biaffine import Biaffine
from mtl.tasks.decoders.alternatives import Item, k_best
from mtl.tasks.decoders.collate import padded
from mtl.tasks.decoders.decoder import StructureScore, scores_at
from mtl.tasks.decoders.pairs import PairDecoder, PairScores
from mtl.tasks.eisner import projective_trees
from mtl.tasks.mst import maximum_trees
from mtl.tasks.precision import at_least_float32
from mtl.tasks.sentence import Arcs, Sentence
from mtl.tasks.task import UNKNOWN, Labels


class ArcTargets(NamedTuple):
    """Per word its head (0 is the root, else 1-based) and its relation's index."""

    heads: Int[np.ndarray, " word"]
    relations: Int[np.ndarray, " word"]


class ArcBatch(NamedTuple):
    """`ArcTargets` of a batch; both are `UNKNOWN` at padding."""

    heads: Int[Tensor, "batch word"]
    relations: Int[Tensor, "batch word"]


def arc_targets(sentence: Sentence, layer: str, labels: Labels) -> ArcTargets:
    """The targets of an annotated sentence; raises `ValueError` unless each word has a possible head."""
    arcs = sentence.layer(layer)
    if arcs is None or not len(arcs.heads) == len(arcs.relations) == len(sentence):
        raise ValueError(f"sentence '{sentence.id}': needs one head and one relation per word")
    heads = np.array(arcs.heads, dtype=np.int64)
    if heads.size and (heads.min() < 0 or heads.max() > len(sentence)):
        raise ValueError(f"sentence '{sentence.id}': heads must lie between 0 and {len(sentence)}")
    if (heads == np.arange(1, len(heads) + 1)).any():
        raise ValueError(f"sentence '{sentence.id}': a word cannot be its own head")
    return ArcTargets(heads, np.array([labels.index(name) for name in arcs.relations], dtype=np.int64))


def collate_arcs(targets: Sequence[ArcTargets], width: int) -> ArcBatch:
    """The targets of a batch, padded to `width` words."""
    return ArcBatch(
        padded([target.heads for target in targets], width),
        padded([target.relations for target in targets], width),
    )


class DepDecoder(PairDecoder):
    """A head for every word, so that they make a tree, and its relation to that head.

    `projective` decodes trees without crossing arcs. With `tie_root`, the root's dependent gets a relation
    named `root` (up to a colon) and no other word does, as far as the labels allow it.
    """

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
    ) -> None:
        super().__init__(hidden, labels, arc_dim, relation_dim, dropout, bias_right=False)
        self.best_trees = projective_trees if projective else maximum_trees
        of_root = torch.tensor([name.partition(":")[0].lower() == "root" for name in labels.names])
        self.of_root = of_root if tie_root and of_root.any() and not of_root.all() else None
        self.relation = Biaffine(relation_dim, len(labels))

    def forward(
        self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]
    ) -> PairScores:
        # Rows of padding keep finite scores; without any, their gradients would be NaN.
        return self.pair_scores(words, functional.pad(mask, (1, 0), value=True)[:, None])

    def loss(
        self, scores: PairScores, targets: ArcBatch, mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, " batch"]:
        arcs = functional.cross_entropy(
            scores.arcs.flatten(0, 1), targets.heads.flatten(), ignore_index=UNKNOWN, reduction="none"
        )
        relations = self._relations(scores, targets.heads.clamp_min(0))
        relations = functional.cross_entropy(
            relations.flatten(0, 1), targets.relations.flatten(), ignore_index=UNKNOWN, reduction="none"
        )
        return (arcs + relations).view(mask.shape).sum(1)

    def structure_score(
        self,
        scores: PairScores,
        targets: ArcBatch,
        mask: Bool[Tensor, "batch word"],
        label: int | None = None,
    ) -> StructureScore:
        chosen = targets.heads != UNKNOWN if label is None else targets.relations == label
        arcs = scores_at(scores.arcs, targets.heads)
        relations = scores_at(self._relations(scores, targets.heads.clamp_min(0)), targets.relations)
        return StructureScore((arcs + relations).masked_fill(~chosen, 0.0).sum(1), chosen.sum(1))

    def decode(self, scores: PairScores, mask: Bool[Tensor, "batch word"]) -> list[Arcs]:
        lengths = mask.sum(1).cpu().numpy()
        heads = self.best_trees(scores.arcs.detach().cpu().numpy(), lengths)
        rows, words = (np.arange(mask.shape[1]) < lengths[:, None]).nonzero()
        of_words = heads[rows, words]
        index = torch.from_numpy(np.stack([rows, words, of_words])).to(mask.device)
        relations = self._possible(self._relations_of(scores, *index), index[2]).argmax(1).tolist()
        found = [self.labels.names[index] for index in relations]
        last = lengths.cumsum().tolist()
        return [
            Arcs(tuple(heads_of[:length].tolist()), tuple(found[end - length : end]))
            for heads_of, length, end in zip(heads, lengths.tolist(), last, strict=True)
        ]

    def alternatives(
        self, scores: PairScores, mask: Bool[Tensor, "batch word"], decoded: Sequence[Arcs], k: int
    ) -> list[tuple[Item, ...]]:
        """Heads by the softmax over all words and the root, word by word, and relations given the head.

        Neither is a marginal over trees: the predicted head need not be the most probable one.
        """
        heads = torch.zeros(mask.shape, dtype=torch.long)
        for row, arcs in zip(heads, decoded, strict=True):
            row[: len(arcs.heads)] = torch.tensor(arcs.heads)
        chosen = heads.to(mask.device)
        relations = self._possible(self._relations(scores, chosen), chosen).softmax(2)[mask]
        of_heads = iter(k_best(scores.arcs.softmax(2)[mask], range(scores.arcs.shape[2]), k))
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

    def _possible(
        self, relations: Float[Tensor, "*batch word label"], heads: Int[Tensor, "*batch word"]
    ) -> Float[Tensor, "*batch word label"]:
        if self.of_root is None:
            return relations
        from_root = (heads == 0)[..., None]
        return relations.masked_fill(from_root != self.of_root.to(relations.device), -torch.inf)

    def _relations(
        self, scores: PairScores, heads: Int[Tensor, "batch word"]
    ) -> Float[Tensor, "batch word label"]:
        width = scores.heads.shape[2]
        chosen = scores.heads.gather(1, heads[:, :, None].expand(-1, -1, width))
        relations = self.relation.pairs(scores.dependents.flatten(0, 1), chosen.flatten(0, 1))
        return at_least_float32(relations).view(*heads.shape, relations.shape[1])

    def _relations_of(
        self,
        scores: PairScores,
        rows: Int[Tensor, " word"],
        words: Int[Tensor, " word"],
        heads: Int[Tensor, " word"],
    ) -> Float[Tensor, "word label"]:
        """The scores of relations at some words only."""
        return at_least_float32(
            self.relation.pairs(scores.dependents[rows, words], scores.heads[rows, heads])
        )
