"""A batch translated under several ablations of heads in one search."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from mtl.analysis.ablation import (
    AblatedCopies,
    Ablations,
    CountsByTask,
    Fill,
    Scale,
    closed_sites,
    under_scales,
)
from mtl.heads.replay import LayerReplay
from mtl.models.batches import Batch
from mtl.models.joint import JointModel
from mtl.translation.pieces import ParallelSubwords
from mtl.translation.seq2seq import Seq2Seq, translations
from mtl.translation.task import translation_in


class TranslatedCopies(AblatedCopies):
    """Translations: the encoder runs once, and again only from the first closed head in it.

    Searches share nothing, since each ablation may change the choice from the first piece on.
    """

    tokens = 4096  # many, since a search step costs nearly as much for few

    def __init__(self, model: JointModel) -> None:
        encoder, task = model.encoder, translation_in(model.tasks)
        assert isinstance(encoder, Seq2Seq)
        assert task is not None
        self._name = task.name
        self._task, self.encoder = task, encoder
        self._replay = LayerReplay(encoder.transformer, encoder.family, encoder_alone=True)
        self._encoded: Float[Tensor, "row subword hidden"]

    def start(self, sites: Iterable[int]) -> int:
        """The same for all, so that any ablations may share a search; one search costs less than several."""
        return 0

    def unchanged(self, batch: Batch, scale: Scale | None) -> CountsByTask:
        """See `AblatedCopies`; also records the outputs of the encoder, its layers and heads."""
        subwords = _pieces(batch)
        # Heads must be recorded before they are scaled, so the scale is entered last.
        with self._replay.record(), under_scales(self.encoder.tap, scale, None, None):
            self._encoded = self.encoder.encode(subwords)
            [counts] = self._counts(batch, subwords, self._encoded)
        return counts

    def ablated(
        self, batch: Batch, scale: Scale | None, ablations: Ablations, fill: Fill | None
    ) -> list[CountsByTask]:
        """See `AblatedCopies`."""
        subwords = _pieces(batch)
        encoded = self._encoded_by_copy(subwords, scale, ablations, fill)
        of_row = ablations.to(batch.mask.device).repeat_interleave(subwords.sentences, 0)
        with under_scales(self.encoder.tap, scale, of_row, fill, self._task.beam):
            return self._counts(batch, _copied(subwords, len(ablations)), encoded.flatten(0, 1))

    def _encoded_by_copy(
        self, subwords: ParallelSubwords, scale: Scale | None, ablations: Ablations, fill: Fill | None
    ) -> Float[Tensor, "copy row subword hidden"]:
        """The encoder's output under each ablation; those that start at the same site share a pass."""
        encoded = self._encoded.repeat(len(ablations), 1, 1, 1)
        copies_by_start: dict[int, list[int]] = {}
        for copy, heads in enumerate(ablations):
            of_encoder = closed_sites(heads[: self._replay.sites])
            if of_encoder:
                copies_by_start.setdefault(self._replay.first(of_encoder), []).append(copy)
        for start, copies in copies_by_start.items():
            of_row = ablations[copies].to(encoded.device).repeat_interleave(subwords.sentences, 0)
            with (
                under_scales(self.encoder.tap, scale, of_row, fill),
                self._replay.start_at(start, len(copies)),
            ):
                above = self.encoder.encode(_copied(subwords, len(copies)))
            encoded[copies] = above.unflatten(0, (len(copies), subwords.sentences))
        return encoded

    def _counts(
        self, batch: Batch, subwords: ParallelSubwords, encoded: Float[Tensor, "row subword hidden"]
    ) -> list[CountsByTask]:
        """The counts of each copy of the batch, under the current scales."""
        gold = batch.of_task(self._name)
        copies = len(encoded) // len(batch.sentences)
        predicted = translations(
            self.encoder, self._task, subwords, list(batch.sentences) * copies, encoded=encoded
        )
        metric = self._task.metric()
        return [
            {self._name: metric.sentence_counts(predicted[first : first + len(gold)], gold)}
            for first in range(0, len(predicted), len(gold))
        ]


def _pieces(batch: Batch) -> ParallelSubwords:
    assert isinstance(batch.subwords, ParallelSubwords)
    return batch.subwords


def _copied(subwords: ParallelSubwords, copies: int) -> ParallelSubwords:
    return subwords.take(torch.arange(subwords.sentences, device=subwords.sentence.device).repeat(copies))
