"""Training sentences and their examples on disk, made once and found by a hash of their inputs.

They are in two folders of the cache (`mtl.workers.cache`). One has the sentences, their labels and the
messages about them. The other has the pieces and targets that a tokeniser and tasks make of the sentences,
and what the order of an epoch and the weights of losses depend on. The name of a folder is a hash of all that
its content depends on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import platform
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from rich.console import Console
from rich.progress import Progress

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig
from mtl.corpora.checks import Seen, seen_in
from mtl.corpora.load import stream_split
from mtl.corpora.readers import reader_modules
from mtl.corpora.records import Records, RecordWriter, packed
from mtl.corpora.sources import corpus_files, corpus_fingerprint
from mtl.errors import InputError
from mtl.files import fingerprint
from mtl.models.batches import Corpus, Example, examples
from mtl.models.subwords import SubwordTokenizer
from mtl.models.unknown_words import Unknown
from mtl.runs.folder.code_fingerprint import code_fingerprint, unused_modules
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task
from mtl.training.run_log import PLAIN
from mtl.training.train_sentences import LeftOut, Tally, TrainSentences, tally_of
from mtl.workers.cache import made_once
from mtl.workers.collector import without_collector
from mtl.workers.in_processes import in_processes
from mtl.workers.pool import threads_for

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
    readers = reader_modules(settings["corpus"])
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
        code_fingerprint(__name__, *readers, unused=unused_modules(settings)),
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
                        writer.add([packed(sentence)])
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

    records = made_once(f"sentences-{key}", Records[Sentence], make, say)
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
    ) -> tuple[Corpus, Tally]:
        key = _digest(
            self.records.folder.name,
            _tokenizer_fingerprint(tokenizer),
            _described(tasks),
            {name: of.names for name, of in labels.items()},
        )
        make = partial(_make_examples, self.records, tokenizer, tasks, labels, self.console)
        made = made_once(f"examples-{key}", Records[Any], make, partial(self.console.print, **PLAIN))
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


class StoredExamples(Corpus):
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
            [packed((example.tokens, example.targets)) for example in some],
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
        for part in in_processes(chunk, chunks, processes):
            writer.add(part.records)
            lengths.append(np.array(part.lengths, dtype=np.int64))
            of_tasks.append(np.array(part.units, dtype=np.int32).reshape(len(tasks), -1))
            tallies.append(part.tally)
            advance(len(part.records))
        writer.finish(
            reduce(Tally.and_, tallies)._asdict(),
            {"lengths": np.concatenate(lengths), "units": np.concatenate(of_tasks, axis=1)},
        )


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
