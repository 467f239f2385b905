"""What every decoder offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mtl.tasks.decoders.alternatives import Item
from mtl.tasks.task import UNKNOWN


class StructureScore(NamedTuple):
    """How high a decoder scores an annotation, before any normalisation."""

    score: Float[Tensor, " batch"]
    """The sum of the scores of the annotation's items; 0 without items."""
    items: Int[Tensor, " batch"]
    """How many items were summed."""


class Decoder(nn.Module, ABC):
    """From word vectors to scores, and from scores to a loss or to annotations.

    Each decoder has its own type of scores: a tensor or a named tuple of tensors. Scores that are quadratic
    in the sentence's length and needed at gold or predicted places only (relations, constituent labels,
    roles) are computed in `loss` and `decode`, at those places.
    """

    reads_first: bool = False
    """Whether the vector of the first special token ([CLS]) comes before those of the words, as a word."""
    narrow: bool = False
    """Whether weights, and so scores, may be in bfloat16: code that needs more digits casts them itself."""

    def as_read(
        self, words: Float[Tensor, "row _ hidden"], mask: Bool[Tensor, "row word"]
    ) -> tuple[Float[Tensor, "row _ hidden"], Bool[Tensor, "row _"]]:
        """Vectors and mask as this decoder reads them.

        `words` begin with the vector of the first special token; `mask` covers the words after it.
        """
        if self.reads_first:
            return words, functional.pad(mask, (1, 0), value=True)
        return words[:, 1:], mask

    @abstractmethod
    def forward(self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]) -> Any:
        """Scores for a batch; `mask` is true at words, false at padding."""

    @abstractmethod
    def loss(self, scores: Any, targets: Any, mask: Bool[Tensor, "batch word"]) -> Float[Tensor, " batch"]:
        """The loss, summed within each sentence (the caller divides by the batch's `Task.loss_units`).

        It is in nats; that of a regression is the squared error.
        """

    @abstractmethod
    def structure_score(
        self, scores: Any, targets: Any, mask: Bool[Tensor, "batch word"], label: int | None = None
    ) -> StructureScore:
        """The score of the targets' annotation of each sentence, or of its items with one label.

        It is a sum of scores as they leave the model, without a partition function. Labels that training
        never saw have no score and are left out.
        """

    @abstractmethod
    def decode(self, scores: Any, mask: Bool[Tensor, "batch word"]) -> list[Any]:
        """One annotation per sentence."""

    def decode_given(
        self, scores: Any, mask: Bool[Tensor, "batch word"], gold: Sequence[Any], decoded: Sequence[Any]
    ) -> list[Any] | None:
        """Annotations when a part of the gold is given (SRL: predicates); `None` if there is no such setting.

        `gold` has the layer of each sentence, `decoded` what `decode` returned.
        """
        return None

    def alternatives(
        self, scores: Any, mask: Bool[Tensor, "batch word"], decoded: Sequence[Any], k: int
    ) -> list[tuple[Item, ...]]:
        """The `k` most probable values of each item of each sentence, given what `decode` returned.

        Empty for decoders whose scores are no probabilities.
        """
        return [()] * len(decoded)


def scores_at(
    scores: Float[Tensor, "*place label"], labels: Int[Tensor, "*place"]
) -> Float[Tensor, "*place"]:
    """The score of the label at each place; 0 where it is `UNKNOWN`."""
    found = scores.gather(-1, labels.clamp_min(0)[..., None]).squeeze(-1)
    return found.masked_fill(labels == UNKNOWN, 0.0)


def score_of_labels(
    scores: Float[Tensor, "batch place label"], labels: Int[Tensor, "batch place"], label: int | None
) -> StructureScore:
    """The structure score of one label for each place, or of the places with the given label."""
    chosen = labels != UNKNOWN if label is None else labels == label
    return StructureScore(scores_at(scores, labels).masked_fill(~chosen, 0.0).sum(1), chosen.sum(1))


def summed(items: Float[Tensor, " item"], rows: Int[Tensor, " item"], sentences: int) -> StructureScore:
    """The sum of each sentence's items and their number; `rows` are the items' sentences in the batch."""
    return StructureScore(
        items.new_zeros(sentences).index_add(0, rows, items), torch.bincount(rows, minlength=sentences)
    )
