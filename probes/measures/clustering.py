"""Pseudo-clustering: is the centroid that is nearest to a head's output that of the item's own label?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import no_type_check

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from mtl.probes.measures import attention
from mtl.probes.measures.attention import hit_shares, hits_by_label
from mtl.probes.measures.corpus import Items, Placed, ProbeSettings
from mtl.probes.measures.probe import FittedProbe, HeadRecords, Probe, added_counts
from mtl.probes.tables import heads_table as table
from mtl.tasks.in_words import counted
from mtl.tasks.recursions import compiled


class ClusteringProbe(FittedProbe):
    """Per label the share of items whose nearest centroid (cosine) is their own label's.

    He & Choi 2021. An item's vector is the mean of its words' head outputs, and a centroid is the mean of its
    items' vectors. Ties go to the label that comes first in the alphabet. Centroids come from `fitted`, items
    with the same labels: those that are scored (as in the paper; optimistic for rare labels, as the shuffled
    labels show), or those of other sentences. A head without output (closed or cut out) hits nothing.

    Two chance levels are computed in the same way. For one, the labels that are fitted and scored are in
    random order. For the other, `draws` random projections of what each layer reads replace the outputs of
    its heads: what they score is in the layer's input, and is no merit of a head.

    Raises `ValueError` if `items` and `fitted` have different labels, or `fitted` is empty.
    """

    def __init__(
        self,
        task: str,
        items: Items,
        fitted: Items,
        layers: int,
        heads: int,
        head_dim: int,
        *,
        draws: int = 0,
        choice: str = "self",
        seed: int = 0,
    ) -> None:
        if items.names != fitted.names:
            raise ValueError(f"{task}: items to fit and to score must be indexed with the same labels")
        if not len(fitted):
            raise ValueError(f"{task}: no item to take centroids from; use sentences annotated for it")
        self.task, self.items, self.fitted, self.choice = task, items, fitted, choice
        self.heads, self.draws, self.seed = heads, draws, seed
        labels = len(items.names)
        self._absent = torch.from_numpy(fitted.per_label() == 0)
        self._labels = [items.label, attention.shuffled(items.label, seed)]
        self._fitted = [fitted.label, attention.shuffled(fitted.label, seed)]
        # Projections are scored as heads after the layer's own, with the true labels alone.
        columns = (heads + draws, heads)
        self._sums = [torch.zeros(labels, layers, count, head_dim, dtype=torch.float64) for count in columns]
        self._hit = [torch.zeros(labels, layers, count, dtype=torch.int64) for count in columns]
        self._count = torch.zeros(2, labels, dtype=torch.int64)
        self._directions: list[Tensor] | None = None

    def fit(self, records: HeadRecords) -> None:
        """Add a batch to the centroids."""
        items = self.fitted.within(records)
        vectors = self._vectors(records, items)
        for turn, (labels, sums) in enumerate(zip(self._fitted, self._sums, strict=True)):
            # Summed in the precision of the records within a batch, and in double precision over batches.
            of_items = labels[items.number].to(vectors.device, non_blocking=True)
            zeros = vectors.new_zeros(sums.shape)
            of_batch = zeros.index_add(0, of_items, vectors[:, :, : sums.shape[2]]).double()
            self._sums[turn] = added_counts(sums, of_batch)
        self._directions = None

    def update(self, records: HeadRecords) -> None:
        """Score a batch against the centroids."""
        items = self.items.within(records)
        if not len(items.number):
            return
        labels = len(self.items.names)
        vectors = self._vectors(records, items).permute(1, 2, 0, 3)
        for turn, (labelling, centroids) in enumerate(
            zip(self._labels, self._centroids(vectors), strict=True)
        ):
            layers, columns = centroids.shape[:2]
            nearness = torch.bmm(vectors[:, :columns].flatten(0, 1), centroids.flatten(0, 1))
            if self._absent.any():
                # A label without a centroid must not win, as it might with a nearness of 0.
                nearness.masked_fill_(self._absent.to(nearness.device, non_blocking=True), -torch.inf)
            label = labelling[items.number]
            nearest = _nearest(nearness, label.to(nearness.device, non_blocking=True))
            hit = nearest.T.unflatten(1, (layers, columns))
            self._hit[turn] = added_counts(self._hit[turn], hits_by_label(hit, label, labels))
            self._count[turn] += torch.bincount(label, minlength=labels)

    def compute(self) -> pl.DataFrame:
        """The measure `clustering` and its chance levels `clustering_shuffled` and `clustering_majority`.

        With projections, also `clustering_projection`, their mean per label and layer.
        """
        task, names, choice, count = self.task, self.items.names, self.choice, self._count.numpy()
        true, shuffled = (
            hit_shares(hit, items_of_label) for hit, items_of_label in zip(self._hit, count, strict=True)
        )
        most = attention.majority(self.items, self.fitted)
        real = slice(self.heads)
        parts = [
            table.rows("clustering", task, names, true[..., real], count[0], choice),
            table.rows("clustering_shuffled", task, names, shuffled[..., real], count[1], choice),
            table.rows("clustering_majority", task, names, most, count[0], choice),
        ]
        if self.draws:
            projected = true[..., self.heads :].mean(-1)
            drawn = f"{choice}, {counted(self.draws, 'draw')} of seed {self.seed}"
            parts.append(table.rows("clustering_projection", task, names, projected, count[0], drawn))
        return pl.concat(parts)

    def _vectors(self, records: HeadRecords, items: Placed) -> Float[Tensor, "item layer column head_dim"]:
        """The vectors of each item by head, and after the heads by projection."""
        vectors = means(records.outputs, items)
        if not self.draws:
            return vectors
        return torch.cat([vectors, means(records.projected, items)], dim=2)

    def _centroids(self, like: Tensor) -> list[Float[Tensor, "layer column head_dim label"]]:
        """The directions of the centroids of labels, and of shuffled labels; lengths do not matter."""
        if self._directions is None:
            # The direction of a sum is that of its mean.
            self._directions = [
                functional.normalize(sums, dim=-1).permute(1, 2, 3, 0).to(like).contiguous()
                for sums in self._sums
            ]
        return self._directions


def clustering_probes(settings: ProbeSettings) -> Iterator[Probe]:
    """A probe for each task that is probed by clustering."""
    corpus = settings.corpus
    for task in corpus.probed_by("clustering", settings.tasks):
        yield ClusteringProbe(
            task,
            corpus.items[task],
            corpus.fitted[task],
            settings.layers,
            settings.heads,
            settings.head_dim,
            draws=settings.draws,
            choice=corpus.choice,
            seed=settings.seed,
        )


def means(
    outputs: Float[Tensor, "word layer head head_dim"], items: Placed
) -> Float[Tensor, "item layer head head_dim"]:
    """The mean of each item's words."""
    word, item, length = (
        each.to(outputs.device, non_blocking=True) for each in (items.word, items.item, items.length)
    )
    if len(word) == len(length):
        return outputs[word]
    summed = outputs.new_zeros(len(length), *outputs.shape[1:]).index_add(0, item, outputs[word])
    return summed / length[:, None, None, None]


def _nearest(
    nearness: Float[Tensor, "column item label"], label: Int[Tensor, " item"]
) -> Bool[Tensor, "column item"]:
    """Whether each item's label is the first one with the greatest nearness, and that is not 0."""
    if nearness.device.type == "cpu":
        return torch.from_numpy(_is_first_greatest(nearness.numpy(), label.numpy()))
    nearest = nearness.max(-1)
    # All nearnesses are 0 where there is no vector.
    return (nearest.indices == label) & (nearest.values != 0)


@compiled
@no_type_check
def _is_first_greatest(nearness, label):
    """As `_nearest`; torch's search for the place of a maximum takes several times as long."""
    columns, items, labels = nearness.shape
    found = np.zeros((columns, items), np.bool_)
    for column in range(columns):
        for item in range(items):
            own = nearness[column, item, label[item]]
            beaten = 0
            for other in range(label[item]):
                beaten |= nearness[column, item, other] >= own
            for other in range(label[item] + 1, labels):
                beaten |= nearness[column, item, other] > own
            found[column, item] = beaten == 0 and own != 0
    return found
