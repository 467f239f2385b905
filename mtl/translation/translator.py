"""The loss of a translation under an encoder-decoder model, with label smoothing in little memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mtl.tasks.decoders.decoder import Decoder, StructureScore, padded, score_of_labels
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


_ROWS = 32
"""Positions computed at a time on a CPU, so that their scores stay in its cache."""


def smoothed_cross_entropy(
    scores: Float[Tensor, "batch piece vocabulary"], targets: Int[Tensor, "batch piece"], smoothing: float
) -> Float[Tensor, "batch piece"]:
    """Cross-entropy in nats against targets that give `smoothing` evenly to all pieces, 0 at `UNKNOWN`.

    For scores x, target t and V pieces it is log sum exp x - (1 - smoothing) x_t - smoothing / V sum x
    (Szegedy et al. 2016), in float32 or wider.
    """
    losses: Tensor = _Smoothed.apply(scores.flatten(0, 1), targets.flatten(), smoothing)
    return losses.view(targets.shape)


class _Smoothed(torch.autograd.Function):
    """Computes the gradient, softmax less the smoothed target, along with the loss: scores are read once."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Float[Tensor, "position vocabulary"],
        targets: Int[Tensor, " position"],
        smoothing: float,
    ) -> Float[Tensor, " position"]:
        width = torch.promote_types(scores.dtype, torch.float32)
        losses = torch.zeros(len(scores), dtype=width, device=scores.device)
        gradient = torch.empty_like(scores) if ctx.needs_input_grad[0] else None
        rows = _ROWS if scores.device.type == "cpu" else max(len(scores), 1)
        for start in range(0, len(scores), rows):
            here = slice(start, start + rows)
            part, target = scores[here].to(width, copy=True), targets[here]
            chosen, index = target != UNKNOWN, target.clamp_min(0)[:, None]
            normaliser = part.logsumexp(1)
            loss = normaliser - (1 - smoothing) * part.gather(1, index).squeeze(1)
            if smoothing:
                loss = loss - smoothing * part.mean(1)
            losses[here] = loss * chosen
            if gradient is not None:
                part.sub_(normaliser[:, None]).exp_()
                if smoothing:
                    part.sub_(smoothing / part.shape[1])
                part.scatter_add_(1, index, part.new_full(index.shape, smoothing - 1.0))
                gradient[here] = part.mul_(chosen[:, None])
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        [gradient] = ctx.saved_tensors
        return gradient * upstream[0].to(gradient.dtype)[:, None], None, None
