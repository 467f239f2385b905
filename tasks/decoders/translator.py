"""The loss of a translation under an encoder-decoder model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mtl.tasks.decoders.collate import padded
from mtl.tasks.decoders.decoder import Decoder, StructureScore, score_of_labels
from mtl.tasks.decoders.smoothed import smoothed_cross_entropy
from mtl.tasks.task import UNKNOWN


class PieceTargets(NamedTuple):
    """The pieces of one translation, with the one that ends it."""

    pieces: Int[np.ndarray, " piece"]


class PieceBatch(NamedTuple):
    """`PieceTargets` of a batch, `UNKNOWN` at padding."""

    pieces: Int[Tensor, "batch piece"]


class Reference(NamedTuple):
    """The cross-entropy of a reference translation, summed over its pieces, and their number."""

    nats: float
    pieces: int


def no_pieces() -> PieceTargets:
    """The targets of a translation that no tokenizer has read."""
    return PieceTargets(np.zeros(0, dtype=np.int64))


def collate_pieces(targets: Sequence[PieceTargets]) -> PieceBatch:
    """The pieces of a batch, padded to its longest translation."""
    pieces = [target.pieces for target in targets]
    return PieceBatch(padded(pieces, max(map(len, pieces))))


class Translator(Decoder):
    """A decoder without parameters: the model below it computes the score of every piece at every position.

    Its "word vectors" are these scores. The scores at a position depend on the pieces of the reference before
    it.
    """

    def __init__(self, label_smoothing: float) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(
        self, words: Float[Tensor, "batch piece vocabulary"], mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, "batch piece vocabulary"]:
        return words

    def loss(
        self,
        scores: Float[Tensor, "batch piece vocabulary"],
        targets: PieceBatch,
        mask: Bool[Tensor, "batch word"],
    ) -> Float[Tensor, " batch"]:
        smoothing = self.label_smoothing if self.training else 0.0
        return smoothed_cross_entropy(scores, targets.pieces, smoothing).sum(1)

    def structure_score(
        self,
        scores: Float[Tensor, "batch piece vocabulary"],
        targets: PieceBatch,
        mask: Bool[Tensor, "batch word"],
        label: int | None = None,
    ) -> StructureScore:
        return score_of_labels(scores, targets.pieces, label)

    def decode(
        self, scores: Float[Tensor, "batch piece vocabulary"], mask: Bool[Tensor, "batch word"]
    ) -> list[str]:
        """Raises `ValueError`: the model itself searches for translations (`JointModel.decoded`)."""
        raise ValueError("scores under a reference give no translation: use JointModel.decoded")

    def preferred(self, scores: Float[Tensor, "batch piece vocabulary"], targets: PieceBatch) -> PieceBatch:
        """At every position the piece with the highest score, given the reference's pieces before it."""
        return PieceBatch(scores.argmax(2).masked_fill(targets.pieces == UNKNOWN, UNKNOWN))

    def references(
        self, scores: Float[Tensor, "batch piece vocabulary"], targets: PieceBatch
    ) -> list[Reference]:
        """The cross-entropy of each reference translation, without label smoothing."""
        nats = smoothed_cross_entropy(scores, targets.pieces, 0.0).sum(1).tolist()
        pieces = (targets.pieces != UNKNOWN).sum(1).tolist()
        return [Reference(*pair) for pair in zip(nats, pieces, strict=True)]
