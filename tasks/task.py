"""What every task offers: labels, targets, a decoder and a metric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torchmetrics
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tasks.sentence import Sentence

UNKNOWN = -100
"""The index of a label that training never saw; losses leave it out, as `cross_entropy` does by default."""


class Labels:
    """An ordered label inventory, taken from the training sentences."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._index = {name: index for index, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        return self.names[index]

    def index(self, name: str) -> int:
        """The label's index, or `UNKNOWN`."""
        return self._index.get(name, UNKNOWN)


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
        """The loss in nats, summed within each sentence (the caller divides by the words of the batch)."""

    @abstractmethod
    def decode(self, scores: Any, mask: Bool[Tensor, "batch word"]) -> list[Any]:
        """One annotation per sentence."""

    def decode_given(
        self, scores: Any, mask: Bool[Tensor, "batch word"], sentences: Sequence[Sentence]
    ) -> list[Any] | None:
        """Annotations when a part of the gold is given (SRL: predicates); `None`: no such setting."""
        return None


@dataclass(frozen=True)
class Task(ABC):
    """Hyperparameters of one task (subclasses are frozen dataclasses of plain values)."""

    name: ClassVar[str]
    """Short name: the key in configurations, score tables and label files."""
    score: ClassVar[str]
    """Which of the metric's figures stands for the task in model selection."""

    @abstractmethod
    def annotated(self, sentence: Sentence) -> bool:
        """Whether the sentence carries this task's layer."""

    @abstractmethod
    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        """The label inventory of the annotated sentences, in a fixed (sorted) order."""

    @abstractmethod
    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        """An annotated sentence's targets as a named tuple of numpy arrays, computed once per corpus."""

    @abstractmethod
    def collate(self, targets: Sequence[Any], width: int) -> Any:
        """A batch's targets as a named tuple of tensors, padded to `width` words."""

    @abstractmethod
    def decoder(self, hidden: int, labels: Labels) -> Decoder:
        """A freshly initialised decoder over word vectors of size `hidden`."""

    @abstractmethod
    def metric(self) -> TaskMetric:
        """A fresh metric."""

    def dropped(self, sentence: Sentence, labels: Labels) -> int:
        """How many of the sentence's annotations this task cannot represent, so neither learns nor finds."""
        return 0

    @abstractmethod
    def annotate(self, sentence: Sentence, annotation: Any) -> Sentence:
        """The sentence with one decoded annotation put into this task's layer."""


class TaskMetric(torchmetrics.Metric, ABC):
    """Counts kept as summed states (so that ranks add up), figures in per cent."""

    full_state_update = False

    @abstractmethod
    def update(
        self, predicted: Sequence[Any], gold: Sequence[Sentence], given: Sequence[Any] | None = None
    ) -> None:
        """Add annotated sentences: decoded annotations, gold sentences, and `decode_given`'s annotations."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """Figures by name, in per cent."""
