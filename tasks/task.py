"""What every task offers: what it reads, labels, targets, a decoder and a metric.

Every command reads this module and the settings of the tasks, so they import no torch. What needs it is
imported where a decoder, a metric or targets are made.

`instance("slots", Ner, "slots")` is a class like those of the tasks that come with the program.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence, annotation_of

if TYPE_CHECKING:
    from mtl.tasks.decoders.decoder import Decoder, Item
    from mtl.tasks.metrics import TaskMetric


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
    """Hyperparameters of one task (subclasses are frozen dataclasses of plain values).

    In a subclass, what has a type is a setting; class attributes have none, unless it is a `ClassVar`.
    """

    kind: ClassVar[str] = ""
    """What a configuration calls tasks of this sort, which share decoder, loss and metric; empty: a sort of
    its own."""
    annotation: ClassVar[str] = ""
    """What it predicts of a sentence, as `annotation_of` calls it."""
    standard: ClassVar[str | None] = None
    """Of tasks with names of a user's own: the layer that holds what they learn in most formats."""
    item: ClassVar[str] = ""
    """What one of its annotations on words is called; empty for tasks on sentences."""
    finds: ClassVar[bool] = False
    """Whether it also finds where items are: one label is then enough, and an empty layer may be right."""
    label_column: ClassVar[str] = "label"
    """What CoNLL-2003 calls the column with its labels."""
    of_features: ClassVar[bool] = False
    """Whether it can learn one feature of bundles (the setting `feature`)."""
    half: ClassVar[Half | None] = None
    """Of tasks with names of a user's own: the half of the training sentences that it learns from."""
    drawn: ClassVar[bool] = False
    """Whether its labels are a random draw, whose seed is its setting `draw`: no head is probed for them."""
    own_model: ClassVar[str] = ""
    """The kind of model that it needs in place of an encoder (`ModelKind` of `mtl.features`, by name); no
    other task is trained beside it. Empty: an encoder."""
    name: ClassVar[str]
    """Short name: the key in configurations, score tables and label files."""
    layers: ClassVar[tuple[str, ...]]
    """The layers of `Sentence` that the task reads besides the words; the one that it learns comes first.

    A run hides the layers that none of its tasks reads.
    """
    loss_unit: ClassVar[Literal["word", "sentence", "piece"]] = "word"
    """What the task labels: its loss is divided by the annotated words, sentences or pieces of the batch."""
    in_rounded_shapes: ClassVar[bool] = False
    """Whether graphs may compute its losses (`trainer.cuda_graphs`). They pad batches with targets of zeros,
    each axis of size 1, and with copies of the last item (a span, a frame). So a sentence's loss must follow
    from its own row and targets, and `collate` must put items in the order of their sentences."""
    score: ClassVar[str]
    """Which of the metric's scores stands for the task in model selection."""
    scores: ClassVar[tuple[str, ...]]
    """The names of the metric's scores; one that ends in `/` stands for all scores whose names begin with it,
    such as one per label, of which there may be none."""
    scored_by: ClassVar[tuple[str, ...]] = ()
    """The settings that say what the main score counts; runs that differ in them have different scores."""
    sentences: ClassVar[tuple[int, ...]] = (1,)
    """How many sentences the task annotates together: one, or (2) those of a pair."""

    @classmethod
    def with_settings(cls, settings: Mapping[str, Any]) -> type[Task]:
        """The class of this kind's tasks with these settings, of which some may change what is scored."""
        return cls

    @property
    @abstractmethod
    def layer(self) -> str:
        """The layer of `Sentence` that the task annotates."""

    def annotated(self, sentence: Sentence) -> bool:
        """Whether the sentence has this task's layer; a task that reads only words takes any that fits."""
        return sentence.layer(self.layer) is not None if self.layers else self.fits(sentence)

    def learns_from(self, sentence: Sentence, number: int) -> bool:
        """Whether it learns from an annotated training sentence; `number` is its place in the corpus."""
        return self.half in (None, half_of(sentence, number))

    def fits(self, sentence: Sentence) -> bool:
        """Whether the task is for such input: one sentence, or a pair."""
        return (1 if sentence.second is None else 2) in self.sentences

    def loss_units(self, sentence: Sentence, targets: Any = None) -> int:
        """How many words, sentences or pieces (`loss_unit`) a sentence has; the loss is divided by them."""
        return len(sentence) if self.loss_unit == "word" else 1

    @abstractmethod
    def items(self, sentence: Sentence) -> Mapping[str, int]:
        """The number of annotations of each name in an annotated sentence (for `mtl data stats`)."""

    def labels_of(self, value: Any) -> Iterable[str]:
        """The labels in a layer with this value, one for each item that has a label."""
        return ()

    def labels_in(self, sentence: Sentence) -> Iterable[str]:
        """The labels in a sentence's layer of this task."""
        value = sentence.layer(self.layer) if self.layers else None
        return () if value is None else self.labels_of(value)

    def same_answer(self, sentence: Sentence, label: str) -> Any:
        """The annotation that gives every item of a sentence this label; `None`: no such answer is scored."""
        return None

    def is_labelled(self, sentence: Sentence) -> bool:
        """Whether an annotated sentence has anything in this task's layer."""
        return any(self.items(sentence).values())

    def is_empty(self, sentence: Sentence) -> bool:
        """Whether there is nothing to learn from an annotated sentence, so that training leaves it out."""
        return False

    def is_odd(self, sentence: Sentence) -> bool:
        """Whether a sentence's annotation is possible, but probably a mistake."""
        return False

    def odd_in_words(self, odd: int, sentences: int) -> str:
        """That a number of sentences are odd (`is_odd`)."""
        return f"{odd:,} of {counted(sentences, 'sentence')} {'is' if odd == 1 else 'are'} odd"

    def notes(self, splits: Mapping[str, Sequence[Sentence]]) -> Iterable[str]:
        """Lines on what is odd in splits as a whole; of train there are those sentences that are left out
        (`is_empty`)."""
        return ()

    def signatures(self) -> Mapping[str, str]:
        """How scores were counted, by score, where a program outside says so."""
        return {}

    @property
    def no_label(self) -> str | None:
        """The label that stands for "no label" in most formats, if the task does not learn it."""
        return None

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        """The label inventory of the annotated sentences, in a fixed (sorted) order."""
        return Labels(sorted({label for sentence in sentences for label in self.labels_in(sentence)}))

    @abstractmethod
    def targets(self, sentence: Sentence, labels: Labels) -> Any:
        """An annotated sentence's targets as a named tuple of numpy arrays, computed once per corpus.

        Raises `ValueError` if the sentence is not annotated, or its annotation does not fit its words.
        """

    def collate(self, targets: Sequence[Any], width: int) -> Any:
        """A batch's targets as a named tuple of tensors, padded to `width` words; their type makes it."""
        return type(targets[0]).collate(targets, width)

    @abstractmethod
    def new_decoder(self, hidden: int, labels: Labels) -> Decoder:
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
        """Why a value of the right type cannot be this task's layer; `None` if it can."""
        return None

    def annotate(self, sentence: Sentence, annotation: Any) -> Sentence:
        """The sentence with a decoded annotation as this task's layer."""
        return sentence.with_layers({self.layer: annotation})


def instance(name: str, kind: type[Task], layer: str, half: Half | None = None) -> type[Task]:
    """The class of a kind's tasks with this name and layer; the same class for the same arguments.

    A kind that reads only words keeps its own layer.
    """
    return _class_of(name, kind, layer, half)


@cache
def _class_of(name: str, kind: type[Task], layer: str, half: Half | None) -> type[Task]:
    standard, *others = kind.layers or (kind.layer,)
    made: dict[str, Any] = {"name": name, "standard": standard, "half": half}
    if kind.layers:
        made |= {"layer": layer, "layers": (layer, *others)}

    def reduced(task: Any) -> tuple[Callable[..., Task], tuple[Any, ...]]:
        settings = {each.name: getattr(task, each.name) for each in fields(task)}
        return _made, (name, kind, layer, half, settings)

    return type(f"{kind.__name__}_{name}", (kind,), made | {"__doc__": kind.__doc__, "__reduce__": reduced})


def misfit(value: Any, kind: type[Task]) -> str | None:
    """Why a task of this kind cannot learn a layer with this value; `None` if it can."""
    found = annotation_of(value)
    if found == kind.annotation or (value == () and kind.finds):
        return None if (wrong := kind.fault(value)) is None else f"has a fault: {wrong}"
    return f"holds {found}, and a task of kind {kind.kind} learns {kind.annotation}"


def _made(name: str, kind: type[Task], layer: str, half: Half | None, settings: Mapping[str, Any]) -> Task:
    return _class_of(name, kind, layer, half)(**settings)


Half = Literal["a", "b"]
HALVES: tuple[Half, ...] = ("a", "b")


def half_of(sentence: Sentence, number: int) -> Half:
    """The half that a training sentence belongs to, by crc32 of its id; `number` is its place in the corpus.

    A sentence without an id gets one from its file's name and line, or from its number. Sentences with the
    same id are in the same half.
    """
    file, _, line = sentence.place.rpartition(":")
    identity = sentence.id or (f"{Path(file).name}:{line}" if file else str(number))
    return HALVES[zlib.crc32(identity.encode()) % len(HALVES)]


@dataclass(frozen=True)
class OnlyWith:
    """The setting of a task makes no difference unless another of its settings has one of these values."""

    setting: str
    values: tuple[Any, ...]

    def __init__(self, setting: str, *values: Any) -> None:
        object.__setattr__(self, "setting", setting)
        object.__setattr__(self, "values", values)


@dataclass(frozen=True)
class OnlyBeside:
    """The setting of a task makes no difference where all of these other settings of it are 0."""

    settings: tuple[str, ...]


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; the ends belong to it unless they are `open`."""

    low: int | float
    high: int | float
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: int | float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        if self.open_low and self.open_high:
            return f"between {self.low:,} and {self.high:,}"
        low = f"above {self.low:,}" if self.open_low else f"from {self.low:,}"
        high = "" if math.isinf(self.high) else f" {'to below' if self.open_high else 'to'} {self.high:,}"
        return f"{low}{high}"

    def wanted(self) -> str:
        """What to use, for a message."""
        if math.isinf(self.high) and not self.open_low:
            return f"at least {self.low:,}" if self.low else "0 or more"
        return f"a number {self}"


Share = Annotated[float, Range(0, 1)]
Dropout = Annotated[float, Range(0, 1, open_high=True)]
Size = Annotated[int, Range(1, 65_536)]
Count = Annotated[int, Range(1, 1_000_000)]
Some = Annotated[int, Range(1, math.inf)]
"""A count without an upper bound."""
CountOrNone = Annotated[int, Range(0, 1_000_000)]
"""A count, or 0 for none at all."""
Seed = Annotated[int, Range(0, 2**32 - 1)]
"""A seed of numpy's and torch's generators."""
