"""What every task offers: what it reads, labels, targets, a decoder and a metric.

This module and the settings of the tasks are read by every command, so they import no torch: what needs it
is imported where a decoder, a metric or targets are made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mtl.tasks.halves import Half, half_of
from mtl.tasks.sentence import Sentence

if TYPE_CHECKING:
    from mtl.tasks.decoders.alternatives import Item
    from mtl.tasks.decoders.decoder import Decoder
    from mtl.tasks.metrics.metric import TaskMetric

UNKNOWN = -100
"""The index of a label that training never saw; losses leave it out, as `cross_entropy` does by default."""


class Labels:
    """An ordered label inventory: the task's own, or that of the training sentences."""

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


def annotated_layer(sentence: Sentence, layer: str) -> Any:
    """The layer of an annotated sentence; raises `ValueError` if the sentence is not annotated."""
    value = sentence.layer(layer)
    if value is None:
        raise ValueError(f"sentence '{sentence.id}' has no {layer}: ask annotated() first")
    return value


@dataclass(frozen=True)
class Task(ABC):
    """Hyperparameters of one task (subclasses are frozen dataclasses of plain values)."""

    kind: ClassVar[str] = ""
    """What a configuration calls tasks of this sort; all of them have its decoder, loss and metric. Empty: a
    sort of its own."""
    annotation: ClassVar[str] = ""
    """What it predicts of a sentence, as `annotation_of` calls it."""
    standard: ClassVar[str | None] = None
    """Of tasks with names of a user's own: the layer in which files of most formats have what they learn."""
    item: ClassVar[str] = ""
    """What one of its annotations on words is called; empty for tasks on sentences."""
    finds: ClassVar[bool] = False
    """Whether its items are found, too, so that one label is enough to learn, and none may be right."""
    label_column: ClassVar[str] = "label"
    """What CoNLL-2003 calls the column with its labels."""
    of_features: ClassVar[bool] = False
    """Whether it can learn one feature of bundles (the setting `feature`)."""
    half: ClassVar[Half | None] = None
    """Of tasks with names of a user's own: the half of the training sentences that it learns from."""
    drawn: ClassVar[bool] = False
    """Whether its labels are a random draw, whose seed is its setting `draw`: no head is probed for them."""
    alone: ClassVar[bool] = False
    """Whether it needs a model of its own, an encoder-decoder, and so no other task is trained beside it."""
    name: ClassVar[str]
    """Short name: the key in configurations, score tables and label files."""
    layers: ClassVar[tuple[str, ...]]
    """The layers of `Sentence` that the task reads besides the words; the one that it learns comes first.

    A run hides the layers that none of its tasks reads.
    """
    loss_unit: ClassVar[Literal["word", "sentence", "piece"]]
    """What the task labels: its loss is divided by the annotated words, sentences or pieces of the batch."""
    score: ClassVar[str]
    """Which of the metric's scores stands for the task in model selection."""
    scores: ClassVar[tuple[str, ...]]
    """The names of the metric's scores; one that ends in `/` stands for those whose names go on after it,
    such as one per label, of which there may be none."""
    scored_by: ClassVar[tuple[str, ...]] = ()
    """The settings that say what the main score counts; runs that differ in them have different scores."""
    sentences: ClassVar[tuple[int, ...]] = (1,)
    """How many sentences the task annotates together: one, or (2) those of a pair."""

    @property
    @abstractmethod
    def layer(self) -> str:
        """The layer of `Sentence` that the task annotates."""

    def annotated(self, sentence: Sentence) -> bool:
        """Whether the sentence carries this task's layer; a task that reads the words alone takes any."""
        return sentence.layer(self.layer) is not None if self.layers else self.fits(sentence)

    def learns_from(self, sentence: Sentence, number: int) -> bool:
        """Whether it learns from an annotated training sentence, given with its number in the corpus."""
        return self.half in (None, half_of(sentence, number))

    def fits(self, sentence: Sentence) -> bool:
        """Whether the task is for such input: one sentence, or a pair."""
        return (1 if sentence.second is None else 2) in self.sentences

    def loss_units(self, sentence: Sentence, targets: Any = None) -> int:
        """How many words, sentences or pieces (`loss_unit`) a sentence has; the loss is divided by them."""
        return len(sentence) if self.loss_unit == "word" else 1

    @abstractmethod
    def items(self, sentence: Sentence) -> Mapping[str, int]:
        """The numbers of annotations in an annotated sentence, by their name (for `mtl data stats`)."""

    def labels_of(self, value: Any) -> Iterable[str]:
        """The labels in a layer of what it predicts, one for each item that has one."""
        return ()

    def labels_in(self, sentence: Sentence) -> Iterable[str]:
        """The labels in its layer of a sentence."""
        value = sentence.layer(self.layer) if self.layers else None
        return () if value is None else self.labels_of(value)

    def is_labelled(self, sentence: Sentence) -> bool:
        """Whether there is anything in its layer of an annotated sentence."""
        return any(self.items(sentence).values())

    @property
    def no_label(self) -> str | None:
        """The label that says in most formats that there is none, where it is not one of its labels."""
        return None

    @abstractmethod
    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        """The label inventory of the annotated sentences, in a fixed (sorted) order."""

    @abstractmethod
    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        """An annotated sentence's targets as a named tuple of numpy arrays, computed once per corpus.

        Raises `ValueError` if the sentence is not annotated, or its annotation does not fit its words.
        """

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
        """How many of the sentence's annotations the task cannot represent, so that it neither learns nor
        predicts them."""
        return 0

    def offered(
        self, sentence: Sentence, items: tuple[Item, ...], k: int, labels: Labels
    ) -> tuple[Item, ...]:
        """What a sentence could have been annotated with, from `Decoder.alternatives`."""
        return items

    @classmethod
    def fault(cls, value: Any) -> str | None:
        """What is wrong with a value of the right type as this task's layer, or `None`."""
        return None

    def annotate(self, sentence: Sentence, annotation: Any) -> Sentence:
        """The sentence with a decoded annotation as this task's layer."""
        return sentence.with_layers({self.layer: annotation})
