"""Training sentences of a run and their examples, in memory or on disk, found by a hash of their inputs.

A folder of records holds their pickles one after the other (`records`), the end and the checksum of each
pickle, further arrays with a number per record, and `facts.json` with other facts. The file is read, not
mapped: reading a truncated file is an error, while a map would end the process.

They are in two folders of the cache (`mtl.workers.cache`). One has the sentences, their labels and the
messages about them. The other has the pieces and targets that a tokeniser and tasks make of the sentences,
and what the order of an epoch and the weights of losses depend on. The name of a folder is a hash of all that
its content depends on.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import importlib.metadata
import json
import os
import pickle
import platform
import tempfile
import warnings
import zlib
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, overload

import numpy as np
from jaxtyping import Int
from rich.console import Console
from rich.progress import Progress

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig
from mtl.corpora.checks import Seen, seen_in
from mtl.corpora.load import corpus_files, corpus_fingerprint, stream_split
from mtl.errors import InputError, RunError
from mtl.files import checksum, fingerprint, write_json
from mtl.models.batches import Example, ExampleCorpus, InMemory, Unknown, count_unknown, examples
from mtl.models.inputs import InputCache
from mtl.models.subwords import SubwordTokenizer, Tokens
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task
from mtl.training.run_log import PLAIN
from mtl.workers.cache import VARIABLE, Damaged, kept_once
from mtl.workers.collector import without_collector
from mtl.workers.pool import in_processes, threads_for


class Tally(NamedTuple):
    """What is counted over the training examples before the first update."""

    annotated: Counter[str]
    """Sentences with targets, by task."""
    dropped: Counter[str]
    """Items that a task cannot represent, by task."""
    unknown: Unknown
    shortened: int
    """Words that were shortened to a maximum number of pieces."""
    cut: int
    """Sentence pairs that were cut at the end."""

    def and_(self, later: Tally) -> Tally:
        """The tally of this part of a corpus together with a later one."""
        return Tally(
            self.annotated + later.annotated,
            self.dropped + later.dropped,
            self.unknown.and_(later.unknown),
            self.shortened + later.shortened,
            self.cut + later.cut,
        )


def tally_of(
    corpus: Sequence[Example], tokenizer: Any, tasks: Mapping[str, Task], labels: Mapping[str, Labels]
) -> Tally:
    """The tally of these training examples."""
    unknown = tokenizer.unknown if isinstance(tokenizer, SubwordTokenizer) else -1
    return Tally(
        Counter(name for example in corpus for name in example.targets),
        Counter({
            name: sum(task.dropped(example.sentence, labels[name]) for example in corpus)
            for name, task in tasks.items()
        }),
        count_unknown(corpus, unknown),
        sum(each.tokens.shortened for each in corpus if isinstance(each.tokens, Tokens)),
        sum(each.tokens.cut for each in corpus if isinstance(each.tokens, Tokens)),
    )  # fmt: skip


class TrainSentences(Sequence[Sentence]):
    """The sentences that a run trains on, wherever they are."""

    @abstractmethod
    def labels(self, name: str, task: Task) -> Labels:
        """The labels of one of the run's tasks."""

    @abstractmethod
    def examples(
        self, tokenizer: Any, tasks: Mapping[str, Task], labels: Mapping[str, Labels]
    ) -> tuple[ExampleCorpus, Tally]:
        """Their examples, as `mtl.models.batches.examples` makes them in training, and the tally of these."""


@dataclass(frozen=True)
class SentencesInMemory(TrainSentences):
    """Training sentences in memory."""

    sentences: Sequence[Sentence]
    inputs: InputCache

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: Any) -> Any:
        return self.sentences[index]

    def labels(self, name: str, task: Task) -> Labels:
        return task.labels(self.sentences)

    def examples(
        self, tokenizer: Any, tasks: Mapping[str, Task], labels: Mapping[str, Labels]
    ) -> tuple[ExampleCorpus, Tally]:
        pieces = self.inputs.pieces(tokenizer, self.sentences)
        made = examples(self.sentences, tokenizer, tasks, labels, pieces, training=True)
        return InMemory(made), tally_of(made, tokenizer, tasks, labels)


@dataclass
class LeftOut:
    """Takes the sentences that training cannot use out of a stream of sentences."""

    max_words: int
    tasks: Mapping[str, Task]
    long: list[Sentence] = field(default_factory=list)
    """Sentences of more than `max_words` words."""
    empty: list[Sentence] = field(default_factory=list)
    """Sentences that a task finds empty (`Task.is_empty`)."""

    def rest(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        """The sentences that are not left out."""
        for sentence in sentences:
            if len(sentence) > self.max_words:
                self.long.append(sentence)
            elif any(task.is_empty(sentence) for task in self.tasks.values()):
                self.empty.append(sentence)
            else:
                yield sentence


T = TypeVar("T", covariant=True)
_FACTS = "facts.json"
_PROTOCOL = 5


def packed_record(value: Any) -> bytes:
    """The bytes of a value as a record."""
    return pickle.dumps(value, _PROTOCOL)


class RecordWriter:
    """Writes a folder of records, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / "records").open("wb")
        self._ends, self._sums, self._end = array("q"), array("q"), 0

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, records: Iterable[bytes]) -> None:
        """Append packed values."""
        for record in records:
            self._file.write(record)
            self._end += len(record)
            self._ends.append(self._end)
            self._sums.append(zlib.crc32(record))

    def written(self) -> Iterator[Any]:
        """The values written so far, one after the other."""
        self._file.flush()
        with (self._folder / "records").open("rb") as file:
            for _ in self._ends:
                yield pickle.load(file)

    def finish(self, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Write the arrays, and last the facts (values for JSON), which mark the folder as complete."""
        self._file.close()
        places = {"ends": np.array(self._ends, dtype=np.int64), "sums": np.array(self._sums, dtype=np.int64)}
        for name, values in (places | dict(arrays)).items():
            np.save(self._folder / f"{name}.npy", values)
        sums = {path.name: checksum(path) for path in self._folder.glob("*.npy")}
        write_json(self._folder / _FACTS, {"facts": facts, "checksums": sums})


class Records(Sequence[T]):
    """The records of a folder.

    The constructor raises `Damaged` for an incomplete or damaged folder, and `PermissionError` for one that
    this user may not read. Reading a damaged record raises `RunError`. While this object exists, the folder
    is in use (`mtl.files.in_use`).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: list[int] = []
        try:
            self._open.append(os.open(folder, os.O_RDONLY))
            self._open.append(os.open(folder / "records", os.O_RDONLY))
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._open[0], fcntl.LOCK_SH)
            said = json.loads((folder / _FACTS).read_bytes())
            self.facts: Mapping[str, Any] = said["facts"]
            if any(checksum(folder / name) != of for name, of in said["checksums"].items()):
                raise Damaged(folder)
            self._ends, self._sums = self.array("ends"), self.array("sums")
            if os.fstat(self._open[1]).st_size != (self._ends[-1] if len(self._ends) else 0):
                raise Damaged(folder)
        except PermissionError:  # it is another user's, and may be complete
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(folder) from error

    def __del__(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    def array(self, name: str) -> np.ndarray:
        """The array of this name."""
        values: np.ndarray = np.load(self.folder / f"{name}.npy", allow_pickle=False)
        return values

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = int(self._ends[index - 1]) if index else 0
        record = os.pread(self._open[1], int(self._ends[index]) - start, start)
        if zlib.crc32(record) != self._sums[index]:
            cure = "start again, and all records are made again"
            try:
                (self.folder / _FACTS).unlink(missing_ok=True)
            except OSError:  # the folder is read-only
                cure = f"delete the folder, or set {VARIABLE} to another place, and start again"
            raise RunError(f"{self.folder}: record {index:,} was damaged: {cure}")
        return cast(T, pickle.loads(record))


_CHUNK = 1_000
"""Number of sentences whose examples a process makes at a time."""
_PACKAGES = ("numpy", "tokenizers", "transformers")


def stored_sentences(
    config: TrainConfig,
    tasks: Mapping[str, Task],
    corpus: str,
    left_out: LeftOut,
    notes: Callable[[Seen], Iterable[str]],
    console: Console,
) -> StoredSentences:
    """The run's training sentences in a store, which is made if it does not exist.

    `corpus` is the fingerprint of all of the run's files. The `notes` on the sentences are kept with them and
    printed for every run that uses them. Raises `InputError` for sentences that cannot be trained on, and for
    files that change while they are read.
    """
    settings = plain(dataclasses.asdict(config))
    # A sentence records where it was read, and halves of a task may depend on that.
    named = [str(file) for file in corpus_files(config.corpus, tasks)]
    key = _digest(
        corpus,
        named,
        {name: value for name, value in settings["corpus"].items() if name != "store"},
        left_out.max_words,
        _described(tasks),
        platform.python_version_tuple()[:2],
        [importlib.metadata.version(package) for package in _PACKAGES],
        fingerprint(_sources()),
    )
    say = partial(console.print, **PLAIN)
    new = False

    def make(folder: Path) -> None:
        nonlocal new
        new = True
        with without_collector(), RecordWriter(folder) as writer:
            with _bar(console, "reading train", None) as advance:

                def written() -> Iterator[Sentence]:
                    for sentence in left_out.rest(stream_split(config.corpus, tasks, "train")):
                        writer.add([packed_record(sentence)])
                        advance(1)
                        yield sentence

                seen = seen_in(written(), tasks)
            if corpus_fingerprint(config.corpus, tasks) != corpus:  # the store's name would be wrong
                raise InputError("files of the corpus were changed while they were read: start again")
            lines = []
            for line in notes(seen):  # it may raise after some lines
                lines.append(line)
                say(line)
            with _bar(console, "labels", len(tasks)) as advance:
                labels = {}
                for name, task in tasks.items():
                    labels[name] = list(task.labels(writer.written()).names)
                    advance(1)
            writer.finish({"labels": labels, "lines": lines}, {})

    records = kept_once(f"sentences-{key}", Records[Sentence], make, say)
    for line in () if new else records.facts["lines"]:
        say(line)
    say(f"train: {counted(len(records), 'sentence')} on disk: {records.folder}")
    return StoredSentences(records, console)


@dataclasses.dataclass(frozen=True)
class StoredSentences(TrainSentences):
    """Training sentences on disk."""

    records: Records[Sentence]
    console: Console

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: Any) -> Any:
        return self.records[index]

    def labels(self, name: str, task: Task) -> Labels:
        return Labels(self.records.facts["labels"][name])

    def examples(
        self, tokenizer: Any, tasks: Mapping[str, Task], labels: Mapping[str, Labels]
    ) -> tuple[ExampleCorpus, Tally]:
        key = _digest(
            self.records.folder.name,
            _tokenizer_fingerprint(tokenizer),
            _described(tasks),
            {name: of.names for name, of in labels.items()},
        )
        make = partial(_make_examples, self.records, tokenizer, tasks, labels, self.console)
        made = kept_once(f"examples-{key}", Records[Any], make, partial(self.console.print, **PLAIN))
        facts = made.facts
        tally = Tally(
            Counter(facts["annotated"]),
            Counter(facts["dropped"]),
            Unknown(*facts["unknown"]),
            facts["shortened"],
            facts["cut"],
        )
        if isinstance(tokenizer, SubwordTokenizer):
            tokenizer.warn_of(tally.shortened, tally.cut)
        return StoredExamples(self.records, made, tuple(tasks)), tally


class StoredExamples(ExampleCorpus):
    """Examples on disk; their lengths and loss units are in memory."""

    def __init__(
        self, sentences: Records[Sentence], records: Records[tuple[Any, Any]], tasks: Sequence[str]
    ) -> None:
        self._sentences, self._records = sentences, records
        self._lengths: Int[np.ndarray, " sentence"] = records.array("lengths")
        units: Int[np.ndarray, "task sentence"] = records.array("units")
        self._units = dict(zip(tasks, units, strict=True))
        """Loss units by task and sentence; -1 for a sentence without targets for the task."""

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        tokens, targets = self._records[index]
        return Example(self._sentences[index], tokens, int(self._lengths[index]), targets)

    def annotated_lengths(
        self, tasks: Sequence[str]
    ) -> tuple[Int[np.ndarray, " sentence"], Int[np.ndarray, " sentence"]]:
        there = [self._units[name] >= 0 for name in tasks]
        used = np.flatnonzero(np.any(there, axis=0)) if there else np.arange(0)
        return used, self._lengths[used]

    def loss_units(self, indices: Iterable[int], tasks: Mapping[str, Task]) -> dict[str, int]:
        chosen = list(indices)
        return {name: int(self._units[name][chosen].clip(0).sum()) for name in tasks}


class _Chunk(NamedTuple):
    """Examples of consecutive sentences, as a process returns them."""

    records: list[bytes]
    lengths: list[int]
    units: list[list[int]]
    """Loss units by task and sentence."""
    tally: Tally


def _make_examples(
    sentences: Records[Sentence],
    tokenizer: Any,
    tasks: Mapping[str, Task],
    labels: Mapping[str, Labels],
    console: Console,
    folder: Path,
) -> None:
    """Fill a folder with the examples of all sentences, which are the same for any number of processes."""

    def chunk(number: int) -> _Chunk:
        first = number * _CHUNK
        with without_collector(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each process would warn about its own part
            some = examples(
                sentences[first : first + _CHUNK], tokenizer, tasks, labels, training=True, first=first
            )
        return _Chunk(
            [packed_record((example.tokens, example.targets)) for example in some],
            [example.length for example in some],
            [[units(task, name, example) for example in some] for name, task in tasks.items()],
            tally_of(some, tokenizer, tasks, labels),
        )

    def units(task: Task, name: str, example: Example) -> int:
        targets = example.targets
        return task.loss_units(example.sentence, targets[name]) if name in targets else -1

    chunks = -(-len(sentences) // _CHUNK)
    processes = min(threads_for(1), chunks)
    lengths, of_tasks, tallies = [], [], []
    with RecordWriter(folder) as writer, _bar(console, "pieces and targets", len(sentences)) as advance:
        for part in in_processes(chunk, range(chunks), processes):
            writer.add(part.records)
            lengths.append(np.array(part.lengths, dtype=np.int64))
            of_tasks.append(np.array(part.units, dtype=np.int32).reshape(len(tasks), -1))
            tallies.append(part.tally)
            advance(len(part.records))
        writer.finish(
            reduce(Tally.and_, tallies)._asdict(),
            {"lengths": np.concatenate(lengths), "units": np.concatenate(of_tasks, axis=1)},
        )


def _sources() -> list[Path]:
    """All files of this package with code.

    A store is made again after any change of code: unlike a run, it costs minutes and nobody looks at it.
    """
    folders = (path for path in Path(__file__).parents[1].iterdir() if path.is_dir())  # some are links
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def _described(tasks: Mapping[str, Task]) -> dict[str, Any]:
    """Classes, layers and settings of tasks, as JSON."""
    return {
        name: [
            [f"{kind.__module__}.{kind.__qualname__}" for kind in type(task).__mro__],
            [task.layer, task.layers, task.half],
            plain(dataclasses.asdict(task)),
        ]
        for name, task in tasks.items()
    }


def _tokenizer_fingerprint(tokenizer: Any) -> str:
    """A hash of all that pieces depend on: the tokenizer's files, and how this program uses it."""
    settings = {
        name: value
        for name, value in vars(tokenizer).items()
        if value is None or isinstance(value, bool | int | str | tuple)
    }
    languages = [getattr(tokenizer.tokenizer, name, None) for name in ("src_lang", "tgt_lang")]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.tokenizer.save_pretrained(folder)
        files = fingerprint(sorted(path for path in Path(folder).rglob("*") if path.is_file()))
    return _digest(type(tokenizer).__name__, settings, languages, files)


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


@contextmanager
def _bar(console: Console, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar; yields a function that takes how many more items are done."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as shown:
        bar = shown.add_task(what, total=total)
        yield lambda done: shown.advance(bar, done)
