"""What every decoder offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from tasks.sentence import Sentence


class Decoder(nn.Module, ABC):
    """From word vectors to scores, and from scores to a loss or to annotations.

    `Scores` is the decoder's own type: a tensor or a named tuple of tensors. What costs time quadratic in
    the sentence and is only needed at gold or predicted places (relations, constituent labels, roles) is
    computed in `loss` and `decode`, at those places.
    """

    @abstractmethod
    def forward(self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]) -> Any:
        """Scores for a batch; `mask` is true at words, false at padding."""

    @abstractmethod
    def loss(self, scores: Any, targets: Any, mask: Bool[Tensor, "batch word"]) -> Float[Tensor, " batch"]:
        """The loss in nats, summed within each sentence (the caller divides by the batch's `Task.units`)."""

    @abstractmethod
    def decode(self, scores: Any, mask: Bool[Tensor, "batch word"]) -> list[Any]:
        """One annotation per sentence."""

    def decode_given(
        self, scores: Any, mask: Bool[Tensor, "batch word"], sentences: Sequence[Sentence]
    ) -> list[Any] | None:
        """Annotations when a part of the gold is given (SRL: predicates); `None`: no such setting."""
        return None
