"""The sentences of a run: read by format, per task where a task has files of its own, and put together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from mtl.config.schema import CorpusConfig, Files, TrainConfig
from mtl.corpora.checks import Seen, refuse_shared_files
from mtl.corpora.formats.parallel import pair_of_files
from mtl.corpora.formats.table import described, format_of
from mtl.corpora.merge import merge
from mtl.corpora.readers import files, iterate, no_sentence, read, stream
from mtl.errors import InputError
from mtl.files import fingerprint
from mtl.tasks.catalogue import TASKS
from mtl.tasks.instance import misfit
from mtl.tasks.sentence import Sentence, bundles_of
from mtl.tasks.task import Task

SPLITS = ("train", "dev", "test")
MADE_BY = {
    "small": "ewt5 --subset=small",
    "ewt10": "ewt10",
    "small10": "ewt10 --subset=small",
}
"""How `mtl data` makes the folders that the configurations of this repository name."""
LARGE = 256_000_000
"""Bytes of the training files from which on `corpus.store=auto` is `disk`. A sentence takes some 15 times as
many in memory."""


def corpus_at(place: str | Path, kinds: Mapping[str, type[Task]]) -> CorpusConfig:
    """The corpus that a command is given: a folder of JSON lines, or SOURCE:TARGET for translations.

    SOURCE:TARGET is all three splits: train, dev and test are the same two files.
    """
    alone = next((name for name, kind in kinds.items() if kind.alone), None)
    if alone is None:
        return CorpusConfig(str(place))
    both = str(place)
    pair_of_files(both)
    files: Any = {alone: Files(both, both, both, "parallel")}
    return replace(CorpusConfig(None), **(files if alone in TASKS else {"instances": files}))


Tasks = Collection[str] | Mapping[str, Task]
"""Tasks by name, or names of tasks that come with the program."""


def kinds_of(tasks: Tasks) -> dict[str, type[Task]]:
    """The class of each task by its name."""
    given = tasks if isinstance(tasks, Mapping) else {}
    return {name: type(given[name]) if name in given else TASKS[name] for name in tasks}


@dataclass(frozen=True)
class Source:
    """Files, the tasks that read them, and the key of the configuration that names them."""

    files: Files
    kinds: Mapping[str, type[Task]]
    key: str

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return tuple(self.kinds)

    @property
    def format(self) -> str:
        """The format with its columns and options; `glue` under a task's name has that task's labels."""
        files, name, own = self.files, self.files.format, self._own
        if name == "glue" and own is not None:
            name = f"glue-{own.standard or own.name}"
        columns = dict(files.columns)
        if "label" in columns and own is not None and name.startswith("conll2003"):
            columns[own.label_column] = columns.pop("label")
        return described(name, columns, files.roots, files.entities)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers of the first task."""
        return next((kind.layers for kind in self.kinds.values()), ())

    @property
    def _own(self) -> type[Task] | None:
        """The only task of files that are named for it."""
        return next(iter(self.kinds.values())) if self.key.rpartition(".")[2] in self.kinds else None

    def chosen(self, sentence: Sentence) -> Sentence:
        """The sentence with only the layers that the tasks read, under the names by which they read them.

        Raises `InputError` for a layer of a named task that holds what its kind does not learn.
        """
        own = self._own
        layer = None if own is None or not own.layers else _layer_in(own, self.files)
        if own is not None and layer is not None:
            kept = {own.layers[0]: sentence.layer(layer)} | {
                name: sentence.layer(name) for name in own.layers[1:]
            }
            sentence = replace(sentence, layers=kept)
        for name, kind in self.kinds.items():
            named = kind.layers and (kind.standard or layer is not None)
            value = sentence.layer(kind.layers[0]) if named else None
            if value is not None and (wrong := misfit(value, kind)) is not None:
                raise InputError(f"{sentence.place or sentence.id}: {name}: its layer {wrong}")
        sentence = only(sentence, self.kinds)
        if not sentence.words and sentence.layers and not any(kind.alone for kind in self.kinds.values()):
            raise InputError(f"{sentence.place or sentence.id}: a sentence without words; take it out")
        return sentence


def _layer_in(kind: type[Task], files: Files) -> str | None:
    """The layer of files that a named task learns; `None`: the one with the name of its own layer.

    A task that learns one feature of bundles learns it from the layer with the bundles.
    """
    if kind.standard is None:
        return files.layer
    _, dot, feature = kind.layers[0].partition(".")
    if dot:
        return f"{files.layer}.{feature}" if files.layer else kind.layers[0]
    return files.layer or (None if files.format == "jsonl" else kind.standard)


def sources(config: CorpusConfig, tasks: Tasks) -> list[Source]:
    """The files that a configuration names, for the chosen tasks; raises `InputError` if a task has none.

    A task reads its own files if it has any, else `corpus.files` if their format has its layer, else the
    folder. The list has them the other way round: folder, `corpus.files`, files of single tasks. Tasks
    on one layer of the same files read it once. A task that reads words alone takes the sentences of those
    beside it.
    """
    kinds = kinds_of(tasks)
    kinds = {name: kind for name, kind in kinds.items() if kind.layers} or kinds
    own = {name: files for name in kinds if (files := config.files_of(name)) is not None}
    rest = {name: kind for name, kind in kinds.items() if name not in own}
    listed: list[Source] = []
    for name, files in own.items():
        alike = next((one for one in listed if one.files == files and one.layers == kinds[name].layers), None)
        if alike is not None:
            listed[listed.index(alike)] = replace(alike, kinds={**alike.kinds, name: kinds[name]})
            continue
        listed.append(Source(files, {name: kinds[name]}, _key(name)))
        _check_layer(listed[-1])
    shared = _shared(config, rest)
    rest = {name: kind for name, kind in rest.items() if name not in shared}
    if shared:
        assert config.files is not None
        listed.insert(0, Source(config.files, shared, "corpus.files"))
    if rest:
        if config.path is None:
            first = next(iter(rest))
            raise InputError(f"no files for {first}: use corpus.path or {_key(first)}.train, .dev and .test")
        folder = Path(config.path)
        if folder.is_file():
            raise InputError(
                f"corpus.path={config.path}: a file, no folder: use the folder of its .jsonl files"
            )
        if not folder.is_dir():
            where = ";" if folder.is_absolute() else f" in {Path.cwd()}; go to the folder that has it, or"
            of_this_name = MADE_BY.get(folder.name)
            command = (
                f"'mtl data {of_this_name} --out {config.path}'"
                if of_this_name
                else f"'mtl data ewt5 --out {config.path}' (--subset=small: 2,600 sentences of it) or "
                f"'mtl data toy --out {config.path}'"
            )
            raise InputError(f"corpus.path={config.path}: no such folder{where} make one with {command}")
        train, dev, test = (str(folder / f"{split}.jsonl") for split in SPLITS)
        paths = Files(train, dev, test)
        listed.insert(0, Source(paths, rest, "corpus.path"))
    return listed


def _shared(config: CorpusConfig, kinds: Mapping[str, type[Task]]) -> dict[str, type[Task]]:
    """Of tasks without files of their own those that `corpus.files` has the layer of."""
    if config.files is None:
        return {}
    layers = _layers_of(Source(config.files, {}, "corpus.files"), config.path is None)
    return {name: kind for name, kind in kinds.items() if {*map(bundles_of, kind.layers[:1])} <= {*layers}}


def with_files(config: CorpusConfig, kinds: Mapping[str, type[Task]]) -> tuple[str, ...]:
    """Of these tasks those that a corpus has files for, in which they may be annotated or not."""
    if config.path is not None:
        return tuple(kinds)
    own = {name for name in kinds if config.files_of(name) is not None}
    return tuple(name for name in kinds if name in own or name in _shared(config, kinds))


def corpus_read(config: TrainConfig) -> CorpusConfig:
    """The corpus without a folder that no task reads, since all have files elsewhere."""
    corpus = config.corpus
    rest = {name: kind for name, kind in kinds_of(config.chosen()).items() if corpus.files_of(name) is None}
    return replace(corpus, path=None) if rest == _shared(corpus, rest) else corpus


def _key(name: str) -> str:
    """The dotted key of a task's own files."""
    return f"corpus.{name}" if name in TASKS else f"corpus.instances.{name}"


def _check_layer(source: Source) -> None:
    """Raise `InputError` where the files of a named task are in a format that has nothing for its kind."""
    [(name, kind)] = source.kinds.items()
    try:
        layers = _layers_of(source, alone=True)
    except InputError as error:
        raise InputError(f"{source.key}: {error}") from error
    layer = bundles_of(_layer_in(kind, source.files) or "")
    if kind.standard and source.files.format != "jsonl" and layer not in layers:
        raise InputError(
            f"{source.key}.format={source.files.format}: {name}, of kind {kind.kind}, learns "
            f"{kind.annotation} ({layer}), and these files have {', '.join(layers) or 'no layer'}"
        )


def _layers_of(source: Source, alone: bool) -> tuple[str, ...]:
    """The layers that files have; `alone`, without a folder beside them, also those of few files."""
    form = format_of(source.format)
    return (*form.layers, *form.sometimes) if alone else form.layers


def load_split(
    config: CorpusConfig,
    tasks: Tasks,
    split: str,
    reader: Callable[[Path, str], list[Sentence]] = read,
) -> list[Sentence]:
    """The sentences of one split, with the layers of the chosen tasks as their sources give them.

    `reader` takes a path and a format and gives the sentences.
    """
    parts = [
        [source.chosen(sentence) for sentence in reader(_path_of(source, split), source.format)]
        for source in sources(config, tasks)
    ]
    return parts[0] if len(parts) == 1 else merge(parts)


def stream_split(config: CorpusConfig, tasks: Tasks, split: str) -> Iterator[Sentence]:
    """The sentences of `load_split`, one by one; those of several sources are joined in memory first."""
    listed = sources(config, tasks)
    if len(listed) > 1:
        yield from load_split(config, tasks, split)
        return
    for sentence in stream(_path_of(listed[0], split), listed[0].format):
        yield listed[0].chosen(sentence)


def is_on_disk(config: CorpusConfig, tasks: Tasks) -> bool:
    """Whether a run's training sentences are in a store on disk (`corpus.store`)."""
    if config.store != "auto":
        return config.store == "disk"
    return sum(file.stat().st_size for file in corpus_files(config, tasks, ("train",))) > LARGE


def refuse_shared(config: CorpusConfig, tasks: Tasks) -> None:
    """Raise `InputError` where a folder or pattern of one split holds a file of another split."""
    for source in sources(config, tasks):
        refuse_shared_files(
            {
                split: [(path, files(path, source.format))]
                for split in SPLITS
                if (path := getattr(source.files, split)) is not None
            }
        )


def _path_of(source: Source, split: str) -> Path:
    path = getattr(source.files, split)
    if path is None:
        raise InputError(f"no {split} file for {', '.join(source.tasks)}: set {source.key}.{split}")
    return Path(path)


def corpus_files(config: CorpusConfig, tasks: Tasks, splits: Sequence[str] = SPLITS) -> list[Path]:
    """All files of the splits, in the order in which they are read; those of a source come together."""
    return [*chain.from_iterable(_listed(sources(config, tasks), splits))]


def _listed(of_sources: Sequence[Source], splits: Sequence[str]) -> list[list[Path]]:
    """The files of each split of each source that has any."""
    return [
        files(Path(path), source.format)
        for source in of_sources
        for split in splits
        if (path := getattr(source.files, split)) is not None
    ]


def corpus_fingerprint(config: CorpusConfig, tasks: Tasks, splits: Sequence[str] = SPLITS) -> str:
    """One hash over the content of all files of the splits; folders and globs count by what they hold."""
    return _fingerprint(sources(config, tasks), splits)


def _fingerprint(of_sources: Sequence[Source], splits: Sequence[str]) -> str:
    """A hash of the content of files, and of how many each split has: one may go from train to dev."""
    listed = _listed(of_sources, splits)
    content, numbers = fingerprint(chain.from_iterable(listed)), [len(of_split) for of_split in listed]
    if len({*numbers}) <= 1:  # then content and order say all
        return content
    return hashlib.sha256(f"{content} {numbers}".encode()).hexdigest()


def corpus_fingerprints(config: CorpusConfig, tasks: Tasks) -> dict[str, str]:
    """The `corpus_fingerprint` of each task's own files, whatever is trained beside it."""
    found: dict[str, str] = {}
    for source in sources(config, tasks):
        digest = _fingerprint([source], SPLITS)
        found |= dict.fromkeys(source.tasks, digest)
    return found


def only(sentence: Sentence, tasks: Collection[str] | Mapping[str, type[Task]]) -> Sentence:
    """The sentence with only the layers that `tasks` read."""
    kinds = tasks if isinstance(tasks, Mapping) else kinds_of(tasks)
    read = {layer for kind in kinds.values() for layer in kind.layers}
    read |= {bundles_of(layer) for layer in read}
    return sentence.with_layers({layer: None for layer in sentence.layers if layer not in read})


def require_layers(sentences: Sequence[Sentence], tasks: Mapping[str, Task], split: str) -> None:
    """Raise `InputError` if a task has nothing to learn from or to be scored on."""
    for name, task in tasks.items():
        if not any(task.annotated(sentence) for sentence in sentences):
            raise _not_annotated(name, task, split, len(sentences), task.layer)


def require_seen(seen: Seen, tasks: Mapping[str, Task], split: str) -> None:
    """As `require_layers`, of sentences that were seen before."""
    for name, task in tasks.items():
        if not seen.layers[name].annotated:
            raise _not_annotated(name, task, split, seen.sentences, task.layer)


def require_first_sentence(
    config: CorpusConfig, name: str, task: Task, split: str, annotated: bool = True
) -> None:
    """Raise `InputError` if a split has no sentence for a task; with `annotated`, no annotated one.

    In JSONL nothing behind that sentence is read, so that faults there are not found.
    """
    [source] = sources(config, {name: task})
    path, count, there = _path_of(source, split), 0, dict[str, None]()
    for sentence in iterate(path, source.format):
        if not annotated or task.annotated(source.chosen(sentence)):
            return
        count += 1
        there.update(dict.fromkeys(sentence.layers))
    layer = source.files.layer or task.layer
    raise (
        _not_annotated(name, task, split, count, layer, there) if count else no_sentence(path, source.format)
    )


def _not_annotated(
    name: str, task: Task, split: str, sentences: int, layer: str, there: Collection[str] = ()
) -> InputError:
    fault = f"no {split} sentence of {sentences} is annotated for {name}"
    if task.standard:
        has = f"; the files have {', '.join(there)}" if there else ""
        return InputError(f"{fault} (by {layer}{has}): set tasks.{name}.layer or tasks.{name}.files")
    return InputError(f"{fault}: leave {name} out of tasks, or give it files of its own (corpus.{name})")
