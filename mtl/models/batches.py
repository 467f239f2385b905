"""From annotated sentences to batches: bucketed by length, shuffled by seed, split over ranks.

`examples` makes sentences ready, `aligned_batches` says which of them are together, and `BatchLoader` pads
these into a `Batch`. A training chooses the batches of its epochs in `mtl.training.data`.

Decoders hold something for every pair of words: DEP a score per arc, CON a score per span, and SRL, which
needs most, a hidden vector of 256 numbers per predicate and word. If all of n words are predicates, one such
tensor takes n * n * 256 * 4 bytes (256 MiB at 512 words), and training holds about six of them (2.0 GiB
measured with MiniLM and its optimizer). The inside-outside algorithm and CKY take n * n * n / 6 steps:
22 million at 512 words, 170 billion at 10,000.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mtl.config.schema import BatchConfig
from mtl.errors import InputError
from mtl.models.subwords import Tokens, moved_at_once
from mtl.tasks.in_words import counted
from mtl.tasks.recursions import round_up
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task


@runtime_checkable
class Pieces(Protocol):
    """The pieces of a sentence, such as `Tokens`."""

    @property
    def target(self) -> Any:
        """The targets of a task that learns pieces; `None`: there are none."""

    def __len__(self) -> int:
        """The number of words."""


@runtime_checkable
class PaddedPieces(Protocol):
    """The pieces of a batch in padded rows, as a model reads them, such as `Subwords`."""

    @property
    def input_ids(self) -> Int[Tensor, "row subword"]:
        """The ids of the pieces that the first stack reads."""

    @property
    def sentence(self) -> Int[Tensor, " row"]:
        """The sentence of each row, ascending."""

    @property
    def sentences(self) -> int:
        """The number of sentences."""

    def take(self, sentences: Int[Tensor, " batch"]) -> PaddedPieces:
        """The rows of the given sentences, in that order; a sentence may come more than once."""

    def positions(self, attention: str) -> Int[Tensor, "row _"]:
        """1 at the positions that a kind of attention has an output for, 0 at padding."""

    def each(self, move: Callable[[Tensor], Tensor]) -> PaddedPieces:
        """The same with each tensor replaced by what `move` makes of it."""

    def to(self, device: torch.device | str) -> PaddedPieces:
        """The same on another device."""


@runtime_checkable
class Tokenizer(Protocol):
    """Makes pieces of sentences, and batches of these."""

    def encode_sentences(self, sentences: Sequence[Sentence]) -> Sequence[Pieces]:
        """The pieces of every sentence."""

    def length(self, tokens: Any) -> int:
        """The positions that a sentence takes, by its pieces as this tokenizer makes them."""

    def collate(self, batch: Any) -> PaddedPieces:
        """Padded rows of a batch, of which this tokenizer made the pieces."""


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence made ready for training: its pieces, and its targets in each task annotated on it."""

    sentence: Sentence
    tokens: Pieces
    length: int
    """The positions that it takes."""
    targets: Mapping[str, Any]
    """By task."""


def examples(
    sentences: Sequence[Sentence],
    tokenizer: Tokenizer,
    tasks: Mapping[str, Task],
    labels: Mapping[str, Labels],
    tokens: Sequence[Pieces] | None = None,
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
                for name, task in annotated_tasks(sentence, tasks)
                if not training or task.learns_from(sentence, number)
            },
        )
        for number, (sentence, pieces) in enumerate(zip(sentences, tokens, strict=True), first)
    ]


def _targets(task: Task, sentence: Sentence, labels: Labels, tokens: Pieces) -> Any:
    """A task's targets; those of a task that learns pieces come from the tokenizer."""
    if task.loss_unit == "piece" and tokens.target is not None:
        return tokens.target
    return task.targets(sentence, labels)


def annotated_tasks(sentence: Sentence, tasks: Mapping[str, Task]) -> list[tuple[str, Task]]:
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
    subwords: PaddedPieces
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
    padded: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    """Per task its rows in rounded shapes, if graphs compute losses: which of them are sentences, their
    mask, and the fields of their targets (`_in_rounded_shapes`)."""

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
            padded={name: tuple(map(move, fields)) for name, fields in self.padded.items()},
        )

    def to(self, device: torch.device | str) -> Batch:
        """The batch with all its tensors on `device`; from the CPU they are copied at once."""
        return moved_at_once(self.each, torch.device(device))


def collate(
    share: Sequence[Example],
    tokenizer: Tokenizer,
    tasks: Mapping[str, Task],
    loss_units: Mapping[str, int] | None = None,
    *,
    rounded: bool = False,
) -> Batch:
    """Pad `share` into a batch of an update with these `loss_units` (`None`: those of `share`).

    With `rounded`, it also has what graphs need (`Batch.padded`), of tasks that allow it.
    """
    sentences = tuple(example.sentence for example in share)
    lengths = np.fromiter((len(sentence) for sentence in sentences), dtype=np.int64, count=len(sentences))
    width = int(lengths.max(initial=1))
    mask = np.arange(width) < lengths[:, None]
    for row, example in zip(mask, share, strict=True):
        tokens = example.tokens
        if isinstance(tokens, Tokens) and tokens.second is not None:
            row[: len(tokens)] = tokens.counts > 0  # a long pair loses words
    rows, targets, places, padded = {}, {}, {}, {}
    for name, task in tasks.items():
        there = tuple(index for index, example in enumerate(share) if name in example.targets)
        if there:
            rows[name], places[name] = torch.tensor(there), there
            own = [share[index].targets[name] for index in there]
            targets[name] = task.collate(own, width)
            if rounded and task.in_rounded_shapes:
                padded[name] = _in_rounded_shapes(task, own, mask[[*there]])
    return Batch(
        sentences,
        tokenizer.collate([example.tokens for example in share]),
        torch.from_numpy(mask),
        rows,
        targets,
        places,
        loss_units_of(share, tasks) if loss_units is None else loss_units,
        padded=padded,
    )


_ROWS, _WIDTH, _ITEMS = 4, 8, 16
"""Numbers of rows (but one of padding), words and items become multiples of these; large ones of items have
three binary digits."""


def _in_rounded_shapes(
    task: Task, targets: Sequence[Any], mask: Bool[np.ndarray, "row word"]
) -> tuple[Tensor, ...]:
    """Which rows are sentences, the mask and the fields of targets, in rounded shapes.

    The first two are 0 and 1 of the type of most fields, since tensors of one type are copied at once.
    Behind the sentences come one or more rows of padding: one word with targets of zeros, among them an item
    (a span, a frame) if the task has items. A number of items is rounded by copies of the last one. So what
    padding adds to losses it adds to rows that are no sentences.
    """
    rows, width = mask.shape
    padded = np.zeros((round_up(rows, _ROWS) + 1, round_up(width, _WIDTH)), dtype=bool)
    padded[:rows, :width], padded[rows:, 0] = mask, True
    zeros = type(targets[0])(*(np.zeros((1,) * one.ndim, one.dtype) for one in targets[0]))
    fields = task.collate([*targets, *[zeros] * (len(padded) - rows)], padded.shape[1])
    there = np.arange(len(padded)) < rows
    numbers = [torch.from_numpy(one.astype(np.int64)) for one in (there, padded)]
    return *numbers, *(_rounded_items(one, len(padded)) for one in fields)


def _rounded_items(entries: Tensor, rows: int) -> Tensor:
    """Entries of items with copies of the last one; entries of rows as they are."""
    items = len(entries)
    if items == rows:
        return entries
    more = round_up(items, max(_ITEMS, 1 << max(items.bit_length() - 3, 0))) - items
    return torch.cat([entries, entries[-1:].expand(more, *entries.shape[1:])])


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


class ExampleCorpus(Sequence[Example]):
    """Examples, with what orders them and divides their losses; a store knows this without reading them."""

    @abstractmethod
    def annotated_lengths(
        self, tasks: Sequence[str]
    ) -> tuple[Int[np.ndarray, " sentence"], Int[np.ndarray, " sentence"]]:
        """The indices of the sentences that any task is annotated on, and their lengths."""

    @abstractmethod
    def loss_units(self, indices: Iterable[int], tasks: Mapping[str, Task]) -> dict[str, int]:
        """Per task the units (`Task.loss_unit`) of the examples of these indices that have targets in it."""


def example_corpus(examples: Sequence[Example]) -> ExampleCorpus:
    """The examples as a corpus; any other sequence becomes one in memory."""
    return examples if isinstance(examples, ExampleCorpus) else InMemory(examples)


@dataclass(frozen=True)
class InMemory(ExampleCorpus):
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
    used, lengths = example_corpus(corpus).annotated_lengths(tasks)
    order, batches = bucket_slices(lengths, batch_tokens, batch_sentences, rng)
    indices = used[order].tolist()
    return [BatchIndices(tuple(indices[batch]), tuple(tasks)) for batch in batches]


class BatchLoader:
    """Iterates over the batches of an epoch; each rank collates its own share of each batch.

    `accumulate` consecutive batches make one update; at the end of the epoch, fewer may be left. A rank
    without a share of a batch gets the batch's first sentence, as an `idle` batch.

    `skip` is the number of batches that were done before the run was interrupted; only the first iteration
    leaves them out. With `rounded`, batches have what graphs need (`Batch.padded`).
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
        rounded: bool = False,
    ) -> None:
        self.corpus, self.tokenizer, self.tasks, self.batches = (
            example_corpus(corpus),
            tokenizer,
            tasks,
            batches,
        )
        self.rank, self.ranks, self.skip = rank, ranks, skip
        self.accumulate, self.rounded = accumulate, rounded

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
            batch = collate(examples, self.tokenizer, names, loss_units, rounded=self.rounded)
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


_PADDING = 1 / 16
"""The share of `batch_tokens` that may be padding in batches without noise: about the cost of one more batch
(EWT in batches of 1,024 has 10 % fewer positions)."""


def buckets(
    lengths: Sequence[int],
    batch_tokens: int,
    batch_sentences: int | None,
    rng: np.random.Generator | None,
) -> list[tuple[int, ...]]:
    """Indices of sentences, in batches of nearly equal length.

    A batch has at most `batch_tokens` padded encoder positions and `batch_sentences` sentences (`None`: any
    number), and `BATCH_PAIRS` bounds what decoders hold for pairs of words. A sentence that exceeds a bound
    alone is a batch of its own. With `rng`, lengths get noise of up to 10 % and batches are shuffled. Without
    it, batches are deterministic and have little padding (`_PADDING`); the longest come first, so that a lack
    of memory shows at once.
    """
    order, batches = bucket_slices(np.asarray(lengths, dtype=np.int64), batch_tokens, batch_sentences, rng)
    indices = order.tolist()
    return [tuple(indices[batch]) for batch in batches]


def bucket_slices(
    lengths: Int[np.ndarray, " sentence"],
    batch_tokens: int,
    batch_sentences: int | None,
    rng: np.random.Generator | None,
) -> tuple[Int[np.ndarray, " sentence"], list[slice]]:
    """The indices of sentences by descending length, and the slices of them that are batches (`buckets`)."""
    noise = rng.uniform(0.9, 1.1, len(lengths)) if rng is not None else 1.0
    order = np.argsort(-(lengths * noise), kind="stable")
    falling = lengths[order]
    batches: list[slice] = []
    start = 0
    while start < len(falling):
        number = _number_of_sentences(falling[start:], batch_tokens, batch_sentences)
        if rng is None:
            number = _number_alike(falling[start : start + number], batch_tokens)
        end = start + number
        batches.append(slice(start, end))
        start = end
    if rng is not None:
        batches = [batches[index] for index in rng.permutation(len(batches))]
    return order, batches


def _number_of_sentences(
    lengths: Int[np.ndarray, " sentence"], batch_tokens: int, batch_sentences: int | None
) -> int:
    """How many of these sentences, from the first on, make one batch: at least one."""
    first = max(1, int(lengths[0]))
    most = min(batch_tokens // first, BATCH_PAIRS // first**2, batch_sentences or len(lengths), len(lengths))
    # No sentence that follows is longer: noise changes lengths by a factor from 0.9 to 1.1.
    bound = first + first // 4 + 1
    if 1 <= most <= min(batch_tokens // bound, BATCH_PAIRS // bound**2):
        return most
    longest = np.maximum.accumulate(lengths[: max(1, most)])
    held = longest * np.arange(1, len(longest) + 1)
    return max(1, int(((held <= batch_tokens) & (held * longest <= BATCH_PAIRS)).sum()))


def _number_alike(lengths: Int[np.ndarray, " sentence"], batch_tokens: int) -> int:
    """How many of these sentences, longest first, need padding of at most `_PADDING` of `batch_tokens`."""
    return int((np.cumsum(lengths[0] - lengths) <= _PADDING * batch_tokens).sum())


MAX_WORDS = BatchConfig.max_words
"""Maximum number of words per sentence, unless a configuration says otherwise."""
BATCH_PAIRS = 2**20
"""Maximum number of rows in a batch times the square of the positions of its longest sentence.

It bounds batches of 6,400 tokens only if a sentence has more than 163, and batches of 16 sentences only if
one has more than 256.
"""


def describe_long(sentences: Sequence[Sentence], max_words: int) -> str | None:
    """How many sentences are too long, and where the first one is; `None` if there are none."""
    long = [sentence for sentence in sentences if len(sentence) > max_words]
    if not long:
        return None
    where = long[0].place or f"sentence '{long[0].id}'"
    number = counted(len(long), "sentence has", "sentences have")
    return f"{number} more than {counted(max_words, 'word')} (the first, {where}, {len(long[0]):,})"


def require_limit(sentences: Sequence[Sentence], max_words: int, split: str) -> None:
    """Raise `InputError` if a scored split has a sentence that is too long: scores must cover the split."""
    message = describe_long(sentences, max_words)
    if message is not None:
        raise InputError(
            f"{split}: {message}, which decoders have no memory for: split such sentences in the file, or "
            "raise batch.max_words (memory grows with its square, time with its cube)"
        )


class Unknown(NamedTuple):
    """How many words a corpus has, how many of them have a piece that the vocabulary lacks, and the first."""

    words: int
    lacking: int
    first: str

    def and_(self, later: Unknown) -> Unknown:
        """The counts of this part of a corpus and the part that follows, together."""
        first = self.first if self.lacking else later.first
        return Unknown(self.words + later.words, self.lacking + later.lacking, first)

    def described(self) -> str | None:
        """The counts in a line; `None` if the vocabulary lacks nothing."""
        if not self.lacking:
            return None
        return (
            f"{self.lacking:,} of {counted(self.words, 'word')} ({self.lacking / self.words:.1%}) have "
            f"pieces that the encoder's vocabulary lacks (the first, {self.first!r})"
        )


def count_unknown(corpus: Iterable[Example], unknown: int) -> Unknown:
    """Count words with a piece that the vocabulary lacks, where pieces are those of words.

    `unknown` is the id that stands for what the vocabulary lacks (`SubwordTokenizer.unknown`).
    """
    words = lacking = 0
    first = ""
    for example in corpus:
        tokens = example.tokens
        if not isinstance(tokens, Tokens):
            continue
        words += len(tokens)
        if unknown in tokens.ids:
            found = np.unique(np.repeat(np.arange(len(tokens)), tokens.counts)[tokens.ids == unknown])
            first = first if lacking else example.sentence.words[found[0]]
            lacking += len(found)
    return Unknown(words, lacking, first)
