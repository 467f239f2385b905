"""The sentences of a run's corpus: which files each task reads, reduced to what tasks read, and joined."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from mtl.config.keys import shown_key
from mtl.config.schema import SPLITS, CorpusConfig, Files, TrainConfig
from mtl.corpora.checks import Seen, refuse_shared_files
from mtl.corpora.folder import require_folder
from mtl.corpora.readers import (
    FORMATS,
    files,
    format_of,
    format_text,
    iterate,
    merge,
    no_sentence,
    read_sentences,
    stream,
)
from mtl.errors import InputError
from mtl.files import fingerprint
from mtl.tasks.catalogue import TASKS
from mtl.tasks.sentence import Sentence, bundles_of
from mtl.tasks.task import Task, misfit


def load_split(
    config: CorpusConfig,
    tasks: Tasks,
    split: str,
    reader: Callable[[Path, str], list[Sentence]] = read_sentences,
) -> list[Sentence]:
    """The sentences of one split, with the layers that the chosen tasks read.

    `reader` returns the sentences at a path in a format. Raises `InputError` for files that cannot be read.
    """
    parts = [
        [_layers_read(source, sentence) for sentence in reader(source.path(split), source.format)]
        for source in sources(config, tasks)
    ]
    return merge(parts)


def stream_split(config: CorpusConfig, tasks: Tasks, split: str) -> Iterator[Sentence]:
    """The sentences of `load_split`, one by one; sentences of several sources are first joined in memory."""
    first, *others = sources(config, tasks)
    if others:
        yield from load_split(config, tasks, split)
        return
    for sentence in stream(first.path(split), first.format):
        yield _layers_read(first, sentence)


def _layers_read(source: CorpusSource, sentence: Sentence) -> Sentence:
    """The sentence with only the layers that the source's tasks read, under the names that they use.

    Raises `InputError` for a layer that holds what the kind of a named task does not learn, and for a
    sentence without words whose tasks need some.
    """
    place = sentence.place or sentence.id
    owner, layer = source.owner, source.own_layer
    if owner is not None and layer is not None:
        first, *others = owner.layers
        layers = {first: sentence.layer(layer)} | {name: sentence.layer(name) for name in others}
        sentence = replace(sentence, layers=layers)
    for name, kind in source.kinds.items():
        named = kind.layers and (kind.standard or layer is not None)
        value = sentence.layer(kind.layers[0]) if named else None
        if value is not None and (wrong := misfit(value, kind)) is not None:
            raise InputError(f"{place}: {name}: its layer {wrong}")
    sentence = only(sentence, source.kinds)
    if not sentence.words and sentence.layers and not any(kind.own_model for kind in source.kinds.values()):
        raise InputError(f"{place}: a sentence without words; take it out")
    return sentence


def only(sentence: Sentence, kinds: Mapping[str, type[Task]]) -> Sentence:
    """The sentence with only the layers that tasks of these classes read."""
    read = {layer for kind in kinds.values() for layer in kind.layers}
    read |= {bundles_of(layer) for layer in read}
    return sentence.with_layers({layer: None for layer in sentence.layers if layer not in read})


def require_layers(sentences: Sequence[Sentence], tasks: Mapping[str, Task], split: str) -> None:
    """Raise `InputError` if no sentence of the split is annotated for one of the tasks."""
    for name, task in tasks.items():
        if not any(map(task.annotated, sentences)):
            raise _not_annotated(name, task, split, len(sentences), task.layer)


def require_seen(seen: Seen, tasks: Mapping[str, Task], split: str) -> None:
    """The same as `require_layers`, for sentences that `seen_in` has looked at."""
    for name, task in tasks.items():
        if not seen.layers[name].annotated:
            raise _not_annotated(name, task, split, seen.sentences, task.layer)


def require_first_sentence(
    config: CorpusConfig, name: str, task: Task, split: str, annotated: bool = True
) -> None:
    """Raise `InputError` if a split has no sentence for a task; with `annotated`, no annotated one.

    JSON lines are read only up to that sentence, so faults after it are not found.
    """
    [source] = sources(config, {name: task})
    path, count, there = source.path(split), 0, dict[str, None]()
    for sentence in iterate(path, source.format):
        if not annotated or task.annotated(_layers_read(source, sentence)):
            return
        count += 1
        there.update(dict.fromkeys(sentence.layers))
    if not count:
        raise no_sentence(path, source.format)
    raise _not_annotated(name, task, split, count, source.files.layer or task.layer, there)


def _not_annotated(
    name: str, task: Task, split: str, sentences: int, layer: str, there: Collection[str] = ()
) -> InputError:
    fault = f"no {split} sentence of {sentences} is annotated for {name}"
    if task.standard:
        has = f"; the files have {', '.join(there)}" if there else ""
        return InputError(f"{fault} (by {layer}{has}): set tasks.{name}.layer or tasks.{name}.files")
    return InputError(f"{fault}: leave {name} out of tasks, or give it files of its own (corpus.{name})")


_MADE_BY = {
    "small": "ewt5 --subset=small",
    "ewt10": "ewt10",
    "small10": "ewt10 --subset=small",
}
"""The arguments with which `mtl data` makes the folders that the configurations of this repository name."""
LARGE = 256_000_000
"""Bytes of training files above which `corpus.store=auto` means `disk`. In memory, a sentence takes about 15
times as many."""

Tasks = Collection[str] | Mapping[str, Task]
"""Tasks by name, or the names of tasks that come with the program."""


def corpus_at(place: str | Path, kinds: Mapping[str, type[Task]]) -> CorpusConfig:
    """The corpus that a command is given: a folder of JSON lines, or paths written as one.

    Such paths are for a task that is trained alone, on a format of several files: the same files are train,
    dev and test. `kinds` are the classes of the tasks.
    """
    alone = next((name for name, kind in kinds.items() if kind.own_model), None)
    if alone is None or Path(place).is_dir():
        return CorpusConfig(str(place))
    written, layer = str(place), kinds[alone].standard or kinds[alone].layers[0]
    format = next(name for name, form in FORMATS.items() if form.paths is not None and layer in form.layers)
    files(written, format)  # raises for files that are not there
    own: Any = {alone: Files(written, written, written, format)}
    return replace(CorpusConfig(None), **(own if alone in TASKS else {"instances": own}))


def kinds_of(tasks: Tasks) -> dict[str, type[Task]]:
    """The class of each task, by the task's name."""
    if isinstance(tasks, Mapping):
        return {name: type(task) for name, task in tasks.items()}
    return {name: TASKS[name] for name in tasks}


@dataclass(frozen=True)
class CorpusSource:
    """Files, the classes of the tasks that read them by name, and the configuration's key for the files."""

    files: Files
    kinds: Mapping[str, type[Task]]
    key: str

    @property
    def format(self) -> str:
        """The format with its columns and options; `glue` becomes `glue-TASK` if a task owns the files."""
        files, name, owner = self.files, self.files.format, self.owner
        columns = dict(files.columns)
        if owner is not None:
            if name == "glue":
                name = f"glue-{owner.standard or owner.name}"
            if "label" in columns and name.startswith("conll2003"):
                columns[owner.label_column] = columns.pop("label")
        return format_text(name, columns, files.roots, files.entities)

    @property
    def owner(self) -> type[Task] | None:
        """The class of the task whose own files these are; `None` for `corpus.path` and `corpus.files`."""
        shared = self.key in ("corpus.path", "corpus.files")
        return None if shared else next(iter(self.kinds.values()))

    @property
    def own_layer(self) -> str | None:
        """The layer of the files that their owner learns under another name; `None`: it has the same name.

        A task that learns one feature of bundles takes it from the layer with the bundles.
        """
        owner, files = self.owner, self.files
        if owner is None or not owner.layers:
            return None
        if owner.standard is None:
            return files.layer
        _, dot, feature = owner.layers[0].partition(".")
        if dot:
            return f"{files.layer}.{feature}" if files.layer else owner.layers[0]
        return files.layer or (None if files.format == "jsonl" else owner.standard)

    def paths(self, splits: Sequence[str] = SPLITS) -> dict[str, str]:
        """The path of each of these splits that has one."""
        return {split: path for split in splits if (path := getattr(self.files, split)) is not None}

    def path(self, split: str) -> Path:
        """The path of a split; raises `InputError` if none is set."""
        if (path := self.paths().get(split)) is None:
            raise InputError(f"no {split} file for {', '.join(self.kinds)}: set {self.key}.{split}")
        return Path(path)


def sources(config: CorpusConfig, tasks: Tasks) -> list[CorpusSource]:
    """The files that a configuration names for the chosen tasks.

    A task reads its own files if it has any, otherwise `corpus.files` if their format has its layer,
    otherwise the folder. The list is in the reverse order: the folder, `corpus.files`, then files of single
    tasks. Tasks on the same layer of the same files share a source. A task that reads only words has no
    source if other tasks have one: it takes their sentences. Raises `InputError` if a task has no files.
    """
    kinds = kinds_of(tasks)
    kinds = {name: kind for name, kind in kinds.items() if kind.layers} or kinds
    own: list[CorpusSource] = []
    rest: dict[str, type[Task]] = {}
    for name, kind in kinds.items():
        files = config.files_of(name)
        if files is None:
            rest[name] = kind
            continue
        for number, other in enumerate(own):
            if other.files == files and all(each.layers == kind.layers for each in other.kinds.values()):
                own[number] = replace(other, kinds={**other.kinds, name: kind})
                break
        else:
            own.append(CorpusSource(files, {name: kind}, _key(name)))
            _check_layer(own[-1])
    shared = _shared(config, rest)
    of_files = (
        [CorpusSource(config.files, shared, "corpus.files")] if shared and config.files is not None else []
    )
    rest = {name: kind for name, kind in rest.items() if name not in shared}
    return [*([_folder(config, rest)] if rest else []), *of_files, *own]


def _folder(config: CorpusConfig, kinds: Mapping[str, type[Task]]) -> CorpusSource:
    """The files of the folder `corpus.path`; raises `InputError` if there is no such folder."""
    if config.path is None:
        first = next(iter(kinds))
        raise InputError(f"no files for {first}: use corpus.path or {_key(first)}.train, .dev and .test")
    if not config.path:
        raise InputError("corpus.path is empty: name a folder, or write null for none")
    folder = Path(config.path)
    where = ";" if folder.is_absolute() else f" in {Path.cwd()}; go to the folder that has it, or"
    made_by = _MADE_BY.get(folder.name)
    commands = (
        f"'mtl data {made_by} --out {config.path}'"
        if made_by
        else f"'mtl data ewt5 --out {config.path}' (--subset=small: 2,600 sentences of it) or "
        f"'mtl data toy --out {config.path}'"
    )
    require_folder(folder, f"corpus.path={config.path}", f"{where} make one with {commands}")
    train, dev, test = (str(folder / f"{split}.jsonl") for split in SPLITS)
    return CorpusSource(Files(train, dev, test), kinds, "corpus.path")


def _shared(config: CorpusConfig, kinds: Mapping[str, type[Task]]) -> dict[str, type[Task]]:
    """Those of the tasks without files of their own whose layer `corpus.files` has."""
    if config.files is None:
        return {}
    layers = _layers_of(CorpusSource(config.files, {}, "corpus.files"), config.path is None)
    return {name: kind for name, kind in kinds.items() if {*map(bundles_of, kind.layers[:1])} <= {*layers}}


def with_files(config: CorpusConfig, kinds: Mapping[str, type[Task]]) -> tuple[str, ...]:
    """The names of those tasks that a corpus has files for; the files may lack annotation for them."""
    if config.path is not None:
        return tuple(kinds)
    shared = _shared(config, kinds)
    return tuple(name for name in kinds if name in shared or config.files_of(name) is not None)


def corpus_read(config: TrainConfig) -> CorpusConfig:
    """The run's corpus, without the folder if no task reads it."""
    corpus = config.corpus
    rest = {name: kind for name, kind in kinds_of(config.chosen()).items() if corpus.files_of(name) is None}
    return replace(corpus, path=None) if rest == _shared(corpus, rest) else corpus


def _key(name: str) -> str:
    """The dotted key of a task's own files."""
    return f"corpus.{name}" if name in TASKS else shown_key(f"corpus.instances.{name}")


def _check_layer(source: CorpusSource) -> None:
    """Raise `InputError` if the files of a named task are in a format without anything for its kind."""
    [(name, kind)] = source.kinds.items()
    try:
        layers = _layers_of(source, alone=True)
    except InputError as error:
        raise InputError(f"{source.key}: {error}") from error
    layer = bundles_of(source.own_layer or "")
    if kind.standard and source.files.format != "jsonl" and layer not in layers:
        raise InputError(
            f"{source.key}.format={source.files.format}: {name}, of kind {kind.kind}, learns "
            f"{kind.annotation} ({layer}), and these files have {', '.join(layers) or 'no layer'}"
        )


def _layers_of(source: CorpusSource, alone: bool) -> tuple[str, ...]:
    """The layers of files; with `alone` (no folder beside them), also those that few files have."""
    form = format_of(source.format)
    return (*form.layers, *form.sometimes) if alone else form.layers


def is_on_disk(config: CorpusConfig, tasks: Tasks) -> bool:
    """Whether a run keeps its training sentences in a store on disk (`corpus.store`)."""
    if config.store != "auto":
        return config.store == "disk"
    return sum(file.stat().st_size for file in corpus_files(config, tasks, ("train",))) > LARGE


def refuse_files_of_two_splits(config: CorpusConfig, tasks: Tasks) -> None:
    """Raise `InputError` if a folder or pattern of one split holds a file of another split."""
    for source in sources(config, tasks):
        refuse_shared_files(
            {split: [(path, files(path, source.format))] for split, path in source.paths().items()}
        )


def corpus_files(config: CorpusConfig, tasks: Tasks, splits: Sequence[str] = SPLITS) -> list[Path]:
    """All files of the splits, in the order in which they are read, source by source."""
    return [*chain.from_iterable(_files_by_split(sources(config, tasks), splits))]


def _files_by_split(of_sources: Sequence[CorpusSource], splits: Sequence[str]) -> list[list[Path]]:
    """For each source, the files of each of its splits."""
    return [files(path, source.format) for source in of_sources for path in source.paths(splits).values()]


def corpus_fingerprint(config: CorpusConfig, tasks: Tasks, splits: Sequence[str] = SPLITS) -> str:
    """A hash over the content of all files of the splits, those of folders and patterns included."""
    return _fingerprint(sources(config, tasks), splits)


def _fingerprint(of_sources: Sequence[CorpusSource], splits: Sequence[str]) -> str:
    """A hash of the files' content and of the number of files per split: a file may move to another split."""
    by_split = _files_by_split(of_sources, splits)
    content, numbers = fingerprint(chain.from_iterable(by_split)), [len(of_split) for of_split in by_split]
    if len({*numbers}) <= 1:  # content and order are enough
        return content
    return hashlib.sha256(f"{content} {numbers}".encode()).hexdigest()


def corpus_fingerprints(config: CorpusConfig, tasks: Tasks) -> dict[str, str]:
    """The fingerprint of each task's source, whatever other tasks are trained beside it."""
    found: dict[str, str] = {}
    for source in sources(config, tasks):
        found |= dict.fromkeys(source.kinds, _fingerprint([source], SPLITS))
    return found
