"""From annotated sentences to batches: bucketed by length, shuffled by seed, split over ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mtl.models.buckets import bucket_slices
from mtl.models.packed import together
from mtl.models.parallel import ParallelSubwords, ParallelTokens
from mtl.models.subwords import Subwords, Tokens
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task


@runtime_checkable
class Tokenizer(Protocol):
    """Makes pieces of sentences, and batches of these."""

    def encode_sentences(self, sentences: Sequence[Sentence]) -> Sequence[Any]:
        """The pieces of every sentence."""

    def length(self, tokens: Any) -> int:
        """The positions that a sentence takes."""

    def collate(self, batch: Any) -> Any:
        """Padded rows of a batch."""


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence made ready for training: its pieces, and its targets in each task annotated on it."""

    sentence: Sentence
    tokens: Tokens | ParallelTokens
    length: int
    """Encoder positions; of a translation, those of its longer side."""
    targets: Mapping[str, Any]
    """By task."""


def examples(
    sentences: Sequence[Sentence],
    tokenizer: Tokenizer,
    tasks: Mapping[str, Task],
    labels: Mapping[str, Labels],
    tokens: Sequence[Tokens | ParallelTokens] | None = None,
    *,
    training: bool = False,
    first: int = 0,
) -> list[Example]:
    """Tokenise the sentences, unless `tokens` are given, and compute their targets.

    With `training`, a task has targets only in the sentences that it learns from (`Task.learns_from`).
    `first` is the number of the first sentence in its corpus.
    """
    if tokens is None:
        tokens = [*tokenizer.encode_sentences(sentences)]
    return [
        Example(
            sentence,
            pieces,
            tokenizer.length(pieces),
            {
                name: _targets(task, sentence, labels[name], pieces)
                for name, task in annotated(sentence, tasks)
                if not training or task.learns_from(sentence, number)
            },
        )
        for number, (sentence, pieces) in enumerate(zip(sentences, tokens, strict=True), first)
    ]


def _targets(task: Task, sentence: Sentence, labels: Labels, tokens: Tokens | ParallelTokens) -> Any:
    """A task's targets; those of a translation task are the pieces of the translation."""
    if isinstance(tokens, ParallelTokens) and task.loss_unit == "piece":
        return tokens.target
    return task.targets(sentence, labels)


def annotated(sentence: Sentence, tasks: Mapping[str, Task]) -> list[tuple[str, Task]]:
    """The tasks that learn from the sentence or are scored on it.

    A task that needs nothing but words takes the sentences that another task is annotated on, or all
    sentences if there are only such tasks.
    """
    there = [(name, task) for name, task in tasks.items() if task.annotated(sentence)]
    on_layers = [name for name, task in there if task.layers]
    return there if on_layers or not any(task.layers for task in tasks.values()) else []


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentences in one encoder pass, and per task which of them it learns from or is scored on."""

    sentences: tuple[Sentence, ...]
    subwords: Subwords | ParallelSubwords
    mask: Bool[Tensor, "batch word"]
    rows: Mapping[str, Int[Tensor, " row"]]
    """Per task the indices in the batch of the sentences annotated in it; tasks without any are absent."""
    targets: Mapping[str, Any]
    """Per task the collated targets of these sentences."""
    places: Mapping[str, tuple[int, ...]]
    """`rows` as plain numbers, which can be read without waiting for a device."""
    loss_units: Mapping[str, int]
    """Per task its annotated words, sentences or pieces (`Task.loss_units`) in the update that the batch is
    a part of, over all ranks and accumulated batches; its loss is divided by them."""
    idle: bool = False
    """Whether the batch only lets this rank take part: its sentence belongs to another rank, and its losses
    are multiplied by 0."""

    def of_task(self, name: str) -> list[Sentence]:
        """The sentences annotated in a task, in the order of `rows`."""
        return [self.sentences[place] for place in self.places[name]]

    def each(self, move: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with each of its tensors replaced by what `move` makes of it."""
        return replace(
            self,
            subwords=self.subwords.each(move),
            mask=move(self.mask),
            rows={name: move(rows) for name, rows in self.rows.items()},
            targets={name: type(target)(*map(move, target)) for name, target in self.targets.items()},
        )

    def to(self, device: torch.device | str) -> Batch:
        """The batch with all its tensors on `device`; from the CPU they are copied at once."""
        device = torch.device(device)
        if self.mask.device.type == device.type == "cpu":
            return self
        if self.mask.device.type != "cpu":
            return self.each(lambda tensor: tensor.to(device))
        tensors: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor

        self.each(note)
        moved = iter(together(tensors, device))
        return self.each(lambda _: next(moved))


def collate(
    share: Sequence[Example],
    tokenizer: Tokenizer,
    tasks: Mapping[str, Task],
    loss_units: Mapping[str, int] | None = None,
) -> Batch:
    """Pad `share` into a batch of an update with these `loss_units` (`None`: those of `share`)."""
    sentences = tuple(example.sentence for example in share)
    lengths = np.fromiter((len(sentence) for sentence in sentences), dtype=np.int64, count=len(sentences))
    width = int(lengths.max(initial=1))
    mask = np.arange(width) < lengths[:, None]
    for row, example in zip(mask, share, strict=True):
        if example.tokens.second is not None:
            row[: len(example.tokens)] = example.tokens.counts > 0  # a long pair loses words
    rows, targets, places = {}, {}, {}
    for name, task in tasks.items():
        there = tuple(index for index, example in enumerate(share) if name in example.targets)
        if there:
            rows[name], places[name] = torch.tensor(there), there
            targets[name] = task.collate([share[index].targets[name] for index in there], width)
    return Batch(
        sentences,
        tokenizer.collate([example.tokens for example in share]),
        torch.from_numpy(mask),
        rows,
        targets,
        places,
        loss_units_of(share, tasks) if loss_units is None else loss_units,
    )


def loss_units_of(examples: Sequence[Example], tasks: Mapping[str, Task]) -> dict[str, int]:
    """Per task the units (`Task.loss_unit`) of the examples that have targets in it."""
    return {
        name: sum(
            task.loss_units(example.sentence, example.targets[name])
            for example in examples
            if name in example.targets
        )
        for name, task in tasks.items()
    }


class Corpus(Sequence[Example]):
    """Examples, with what orders them and divides their losses; a store knows this without reading them."""

    @abstractmethod
    def annotated_lengths(
        self, tasks: Sequence[str]
    ) -> tuple[Int[np.ndarray, " sentence"], Int[np.ndarray, " sentence"]]:
        """The indices of the sentences that any task is annotated on, and their lengths."""

    @abstractmethod
    def loss_units(self, indices: Iterable[int], tasks: Mapping[str, Task]) -> dict[str, int]:
        """Per task the units (`Task.loss_unit`) of the examples of these indices that have targets in it."""


def corpus_of(examples: Sequence[Example]) -> Corpus:
    """The examples as a corpus; any other sequence becomes one in memory."""
    return examples if isinstance(examples, Corpus) else InMemory(examples)


@dataclass(frozen=True)
class InMemory(Corpus):
    """Examples in memory."""

    examples: Sequence[Example]

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: Any) -> Any:
        return self.examples[index]

    def annotated_lengths(
        self, tasks: Sequence[str]
    ) -> tuple[Int[np.ndarray, " sentence"], Int[np.ndarray, " sentence"]]:
        used = [
            (index, example.length)
            for index, example in enumerate(self.examples)
            if any(name in example.targets for name in tasks)
        ]
        indices, lengths = np.array(used, dtype=np.int64).reshape(-1, 2).T
        return indices, lengths

    def loss_units(self, indices: Iterable[int], tasks: Mapping[str, Task]) -> dict[str, int]:
        return loss_units_of([self.examples[index] for index in indices], tasks)


def unlabelled(share: Sequence[Example], tokenizer: Tokenizer, tasks: Mapping[str, Task]) -> Batch:
    """A batch in which every task applies to all sentences that it fits, without targets."""
    batch = collate(share, tokenizer, {})
    places = {}
    for name, task in tasks.items():
        fitting = tuple(row for row, example in enumerate(share) if task.fits(example.sentence))
        if fitting:
            places[name] = fitting
    return replace(batch, rows={name: torch.tensor(rows) for name, rows in places.items()}, places=places)


@dataclass(frozen=True, slots=True)
class BatchIndices:
    """Which examples are in a batch, and which tasks learn from them."""

    indices: tuple[int, ...]
    tasks: tuple[str, ...]


def aligned_batches(
    corpus: Sequence[Example],
    tasks: Sequence[str],
    batch_tokens: int,
    batch_sentences: int | None,
    rng: np.random.Generator | None,
) -> list[BatchIndices]:
    """Every sentence that any task is annotated on, once; all its tasks learn from that one pass.

    The other arguments are those of `buckets`.
    """
    used, lengths = corpus_of(corpus).annotated_lengths(tasks)
    order, batches = bucket_slices(lengths, batch_tokens, batch_sentences, rng)
    indices = used[order].tolist()
    return [BatchIndices(tuple(indices[batch]), tuple(tasks)) for batch in batches]


class BatchLoader:
    """Iterates over the batches of an epoch; each rank collates its own share of each batch.

    `accumulate` consecutive batches make one update; at the end of the epoch, fewer may be left. A rank
    without a share of a batch gets the batch's first sentence, as an `idle` batch.

    `skip` is the number of batches that were done before the run was interrupted; only the first iteration
    leaves them out.
    """

    def __init__(
        self,
        corpus: Sequence[Example],
        tokenizer: Tokenizer,
        tasks: Mapping[str, Task],
        batches: Sequence[BatchIndices],
        rank: int = 0,
        ranks: int = 1,
        skip: int = 0,
        accumulate: int = 1,
    ) -> None:
        self.corpus, self.tokenizer, self.tasks, self.batches = corpus_of(corpus), tokenizer, tasks, batches
        self.rank, self.ranks, self.skip = rank, ranks, skip
        self.accumulate = accumulate

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        skip, self.skip = self.skip, 0
        loss_units: Mapping[str, int] = {}
        for number in range(skip, len(self.batches)):
            if number == skip or number % self.accumulate == 0:
                start = number - number % self.accumulate
                loss_units = self._loss_units(self.batches[start : start + self.accumulate])
            chosen = self.batches[number]
            share = chosen.indices[self.rank :: self.ranks]
            examples = [self.corpus[index] for index in share or chosen.indices[:1]]
            names = {name: self.tasks[name] for name in chosen.tasks}
            batch = collate(examples, self.tokenizer, names, loss_units)
            if not share:
                batch = replace(batch, idle=True)
            yield batch

    def _loss_units(self, batches: Sequence[BatchIndices]) -> dict[str, int]:
        """By task the loss units in an update's batches, over all ranks."""
        loss_units: Counter[str] = Counter()
        for batch in batches:
            names = {name: self.tasks[name] for name in batch.tasks}
            loss_units.update(self.corpus.loss_units(batch.indices, names))
        return dict(loss_units)
