"""Dependency parsing: biaffine heads and relations, decoded as a single-root spanning tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mtl.tasks.biaffine import Biaffine, Mlp
from mtl.tasks.decoders.alternatives import Item, k_best
from mtl.tasks.decoders.decoder import Decoder, StructureScore
from mtl.tasks.eisner import projective_trees
from mtl.tasks.mst import maximum_trees
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


class ArcScores(NamedTuple):
    """Scores of every head for every word, and what relations are scored from (candidate 0 is the root)."""

    arcs: Float[Tensor, "batch word candidate"]
    dependents: Float[Tensor, "batch word relation"]
    heads: Float[Tensor, "batch candidate relation"]


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
    heads = np.full((len(targets), width), UNKNOWN, dtype=np.int64)
    relations = np.full((len(targets), width), UNKNOWN, dtype=np.int64)
    for row, target in enumerate(targets):
        heads[row, : len(target.heads)] = target.heads
        relations[row, : len(target.relations)] = target.relations
    return ArcBatch(torch.from_numpy(heads), torch.from_numpy(relations))


class DepDecoder(Decoder):
    """Deep biaffine attention (Dozat and Manning 2017) over the words and a learned root vector.

    `projective` decodes trees without crossing arcs. With `tie_root`, the root's dependent gets a relation
    named `root` (up to a colon) and no other word does, as far as the labels allow it.
    """

    narrow = True

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
        super().__init__()
        self.labels = labels
        self.best_trees = projective_trees if projective else maximum_trees
        of_root = torch.tensor([name.partition(":")[0].lower() == "root" for name in labels.names])
        self.of_root = of_root if tie_root and of_root.any() and not of_root.all() else None
        self.widths = [arc_dim, arc_dim, relation_dim, relation_dim]
        self.root = nn.Parameter(torch.randn(hidden) / hidden**0.5)
        self.mlp = Mlp(hidden, sum(self.widths), dropout)
        self.arc = Biaffine(arc_dim, 1, bias_left=True, bias_right=False)
        self.relation = Biaffine(relation_dim, len(labels))

    def forward(
        self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]
    ) -> ArcScores:
        batch, width = mask.shape
        root = self.root.to(words.dtype).expand(batch, 1, -1)
        dependent, head, relation_dependent, relation_head = self.mlp(torch.cat([root, words], 1)).split(
            self.widths, 2
        )
        arcs = self.arc(dependent[:, 1:], head).squeeze(3)
        arcs = arcs.to(torch.promote_types(arcs.dtype, torch.float32))
        candidates = functional.pad(mask, (1, 0), value=True)[:, None]
        itself = torch.eye(width, width + 1, dtype=torch.bool, device=mask.device).roll(1, 1)
        arcs = arcs.masked_fill(~candidates | itself, -torch.inf)
        return ArcScores(arcs, relation_dependent[:, 1:], relation_head)

    def loss(
        self, scores: ArcScores, targets: ArcBatch, mask: Bool[Tensor, "batch word"]
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
        scores: ArcScores,
        targets: ArcBatch,
        mask: Bool[Tensor, "batch word"],
        label: int | None = None,
    ) -> StructureScore:
        heads = targets.heads.clamp_min(0)
        chosen = targets.heads != UNKNOWN if label is None else targets.relations == label
        arcs = scores.arcs.gather(2, heads[:, :, None]).squeeze(2).masked_fill(~chosen, 0.0)
        relations = self._relations(scores, heads).gather(2, targets.relations.clamp_min(0)[:, :, None])
        relations = relations.squeeze(2).masked_fill(~chosen | (targets.relations == UNKNOWN), 0.0)
        return StructureScore((arcs + relations).sum(1), chosen.sum(1))

    def decode(self, scores: ArcScores, mask: Bool[Tensor, "batch word"]) -> list[Arcs]:
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
        self, scores: ArcScores, mask: Bool[Tensor, "batch word"], decoded: Sequence[Arcs], k: int
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
        self, scores: ArcScores, heads: Int[Tensor, "batch word"]
    ) -> Float[Tensor, "batch word label"]:
        width = scores.heads.shape[2]
        chosen = scores.heads.gather(1, heads[:, :, None].expand(-1, -1, width))
        relations = self.relation.pairs(scores.dependents.flatten(0, 1), chosen.flatten(0, 1))
        relations = relations.to(torch.promote_types(relations.dtype, torch.float32))
        return relations.view(*heads.shape, relations.shape[1])

    def _relations_of(
        self,
        scores: ArcScores,
        rows: Int[Tensor, " word"],
        words: Int[Tensor, " word"],
        heads: Int[Tensor, " word"],
    ) -> Float[Tensor, "word label"]:
        """The scores of relations at some words only."""
        relations = self.relation.pairs(scores.dependents[rows, words], scores.heads[rows, heads])
        return relations.to(torch.promote_types(relations.dtype, torch.float32))
