"""The files of a run's corpus: which files each task reads, in which format, and their fingerprints."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from mtl.config.schema import CorpusConfig, Files, TrainConfig
from mtl.corpora.checks import refuse_shared_files
from mtl.corpora.formats.parallel import pair_of_files
from mtl.corpora.formats.table import described, format_of
from mtl.corpora.readers import files
from mtl.corpora.splits import SPLITS, require_folder
from mtl.errors import InputError
from mtl.files import fingerprint
from mtl.tasks.catalogue import TASKS
from mtl.tasks.sentence import bundles_of
from mtl.tasks.task import Task

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
    """The corpus that a command is given: a folder of JSON lines, or SOURCE:TARGET for translations.

    With SOURCE:TARGET, the same two files are train, dev and test. `kinds` are the classes of the tasks.
    """
    translation = next((name for name, kind in kinds.items() if kind.alone), None)
    if translation is None or Path(place).is_dir():
        return CorpusConfig(str(place))
    both = str(place)
    pair_of_files(both)
    files: Any = {translation: Files(both, both, both, "parallel")}
    return replace(CorpusConfig(None), **(files if translation in TASKS else {"instances": files}))


def kinds_of(tasks: Tasks) -> dict[str, type[Task]]:
    """The class of each task, by the task's name."""
    if isinstance(tasks, Mapping):
        return {name: type(task) for name, task in tasks.items()}
    return {name: TASKS[name] for name in tasks}


@dataclass(frozen=True)
class Source:
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
        return described(name, columns, files.roots, files.entities)

    @property
    def owner(self) -> type[Task] | None:
        """The class of the task whose own files these are; `None` for `corpus.path` and `corpus.files`."""
        return next(iter(self.kinds.values())) if self.key.rpartition(".")[2] in self.kinds else None

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


def sources(config: CorpusConfig, tasks: Tasks) -> list[Source]:
    """The files that a configuration names for the chosen tasks.

    A task reads its own files if it has any, otherwise `corpus.files` if their format has its layer,
    otherwise the folder. The list is in the reverse order: the folder, `corpus.files`, then files of single
    tasks. Tasks on the same layer of the same files share a source. A task that reads only words has no
    source if other tasks have one: it takes their sentences. Raises `InputError` if a task has no files.
    """
    kinds = kinds_of(tasks)
    kinds = {name: kind for name, kind in kinds.items() if kind.layers} or kinds
    own: list[Source] = []
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
            own.append(Source(files, {name: kind}, _key(name)))
            _check_layer(own[-1])
    shared = _shared(config, rest)
    of_files = [Source(config.files, shared, "corpus.files")] if shared and config.files is not None else []
    rest = {name: kind for name, kind in rest.items() if name not in shared}
    return [*([_folder(config, rest)] if rest else []), *of_files, *own]


def _folder(config: CorpusConfig, kinds: Mapping[str, type[Task]]) -> Source:
    """The files of the folder `corpus.path`; raises `InputError` if there is no such folder."""
    if config.path is None:
        first = next(iter(kinds))
        raise InputError(f"no files for {first}: use corpus.path or {_key(first)}.train, .dev and .test")
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
    return Source(Files(train, dev, test), kinds, "corpus.path")


def _shared(config: CorpusConfig, kinds: Mapping[str, type[Task]]) -> dict[str, type[Task]]:
    """Those of the tasks without files of their own whose layer `corpus.files` has."""
    if config.files is None:
        return {}
    layers = _layers_of(Source(config.files, {}, "corpus.files"), config.path is None)
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
    return f"corpus.{name}" if name in TASKS else f"corpus.instances.{name}"


def _check_layer(source: Source) -> None:
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


def _layers_of(source: Source, alone: bool) -> tuple[str, ...]:
    """The layers of files; with `alone` (no folder beside them), also those that few files have."""
    form = format_of(source.format)
    return (*form.layers, *form.sometimes) if alone else form.layers


def is_on_disk(config: CorpusConfig, tasks: Tasks) -> bool:
    """Whether a run keeps its training sentences in a store on disk (`corpus.store`)."""
    if config.store != "auto":
        return config.store == "disk"
    return sum(file.stat().st_size for file in corpus_files(config, tasks, ("train",))) > LARGE


def refuse_shared(config: CorpusConfig, tasks: Tasks) -> None:
    """Raise `InputError` if a folder or pattern of one split holds a file of another split."""
    for source in sources(config, tasks):
        refuse_shared_files(
            {split: [(path, files(path, source.format))] for split, path in source.paths().items()}
        )


def corpus_files(config: CorpusConfig, tasks: Tasks, splits: Sequence[str] = SPLITS) -> list[Path]:
    """All files of the splits, in the order in which they are read, source by source."""
    return [*chain.from_iterable(_files_by_split(sources(config, tasks), splits))]


def _files_by_split(of_sources: Sequence[Source], splits: Sequence[str]) -> list[list[Path]]:
    """For each source, the files of each of its splits."""
    return [files(path, source.format) for source in of_sources for path in source.paths(splits).values()]


def corpus_fingerprint(config: CorpusConfig, tasks: Tasks, splits: Sequence[str] = SPLITS) -> str:
    """A hash over the content of all files of the splits, those of folders and patterns included."""
    return _fingerprint(sources(config, tasks), splits)


def _fingerprint(of_sources: Sequence[Source], splits: Sequence[str]) -> str:
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
